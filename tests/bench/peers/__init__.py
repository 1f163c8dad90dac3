"""Other systems that do the same work in the same run: plain files (the floor), SQLite, LMDB, Redis."""
