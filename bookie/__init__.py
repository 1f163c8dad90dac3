"""One storage server: what Apache calls a bookie."""
