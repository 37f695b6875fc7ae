"""Where the jobs of DCP look for it; see ``tests/damaged.py``."""

from tests.damaged import Damaged

__all__ = ["Damaged"]
