"""A minimum number of cases that a hypothesis test must execute to the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def executes_at_least(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Fail a hypothesis test if fewer cases than `count` reached their end: `assume` must not discard nearly all."""

    def decorate(test: Any) -> Callable[..., None]:
        inner, executed = test.hypothesis.inner_test, []

        @wraps(inner)
        def counted(*args: Any, **kwargs: Any) -> None:
            inner(*args, **kwargs)
            executed.append(None)

        test.hypothesis.inner_test = counted

        @wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            executed.clear()
            test(*args, **kwargs)
            assert len(executed) >= count, f"Only {len(executed)} cases were executed."

        return run

    return decorate
