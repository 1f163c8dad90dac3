"""How ordinary programs end in the midst of what they do with a log."""
