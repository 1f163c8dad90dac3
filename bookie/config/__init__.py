"""Apache's ``bk_server.conf``: its keys, read into one frozen class for each part of a bookie.

Inside: properties files, typed values, the keys and their effect here.
Not inside: the classes of the parts and their defaults, which stand beside the parts. Entry point:
``load_config``.
"""

from bookie.config.bookie_config import load_config
from bookie.config.classes import BookieConfig

__all__ = ["BookieConfig", "load_config"]
