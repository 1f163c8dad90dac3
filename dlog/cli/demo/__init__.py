"""`dlog demo`: the main job on real input, with a writer that is killed half way."""
