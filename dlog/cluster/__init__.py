"""ZooKeeper and bookies as processes of one machine."""
