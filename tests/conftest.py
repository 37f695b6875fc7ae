"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run; no deadline, because nothing here asserts a time.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")
