"""What crosses the wire between a client and a bookie: frames, messages and the two codecs."""
