"""Where the jobs of DCP look for it; see ``tests/damaged.py``."""

from tests.damaged import ERRORS, N

__all__ = ["ERRORS", "N"]
