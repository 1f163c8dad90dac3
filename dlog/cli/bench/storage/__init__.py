"""`dlog bench storage`: one bookie without a network, beside what the disk itself could do."""
