"""The cache of a process."""

from __future__ import annotations

import time

from service.context import TtlCache


def test_values_queried_before_an_invalidation_are_not_used() -> None:
    """Not even if the answer arrives after that: it may be from before as well."""
    cache: TtlCache[str, int] = TtlCache(seconds=60)
    asked = time.monotonic()
    cache.put("a", 1)
    assert cache.get("a") == 1
    cache.outdate()
    assert cache.get("a") is None
    cache.put("a", 1, asked)
    assert cache.get("a") is None
    cache.put("a", 2)
    assert cache.get("a") == 2
