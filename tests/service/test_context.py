"""What a process remembers for a moment."""

from __future__ import annotations

import time

from service.context import Recent


def test_what_was_asked_for_before_it_was_outdated_is_not_used() -> None:
    """Not even if the answer arrives after that: it may be from before, too."""
    recent: Recent[str, int] = Recent(seconds=60)
    asked = time.monotonic()
    recent.put("a", 1)
    assert recent.get("a") == 1
    recent.outdate()
    assert recent.get("a") is None
    recent.put("a", 1, asked)
    assert recent.get("a") is None
    recent.put("a", 2)
    assert recent.get("a") == 2
