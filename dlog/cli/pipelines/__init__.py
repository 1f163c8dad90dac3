"""`dlog pipeline`: archives, restores and copies of whole logs with Spark."""
