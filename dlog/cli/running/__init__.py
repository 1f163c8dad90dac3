"""Commands that start a cluster, here or on several hosts, and ZooKeeper."""
