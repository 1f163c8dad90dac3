"""The page for people: a cluster, its bookies and its logs at one moment, as JSON and as files for a browser.

Inside: what the page shows, the rates between two moments, the files. Not inside: the HTTP server and who may
ask (``bookie``), the tie between both (``dlog.cli.operators.bookie.page_routes``).
Entry points: ``open_page``, ``Page.answer``; ``look`` for a terminal.
"""

from dlog.page.page import Page, PageReply, look, open_page

__all__ = ["Page", "PageReply", "look", "open_page"]
