"""One ledger: write, read, recover. The client side of Apache BookKeeper."""
