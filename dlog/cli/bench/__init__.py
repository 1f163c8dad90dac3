"""`dlog bench`: how fast it is here, beside what the disk itself could do."""
