"""`dlog demo`: write lines to a log, kill the writer half way, continue, compare all lines."""
