"""What an operator waits or pays for: the repair after a bookie's death, an idle cluster, the page.

Inside: one module for each part. Not inside: the speed of logs (the other benchmarks).
Entry point: ``command``.
"""
