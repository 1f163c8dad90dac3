"""`dlog bench storage`: measure one bookie without a network, beside a plain loop on the same disk."""
