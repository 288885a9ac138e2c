"""One clock for the whole process, which tests replace."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from core import clock
from tests.clock import VirtualClock

START = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_virtual_clock_advances_only_when_told_to_or_waited_on() -> None:
    over = threading.Event()
    with clock.use(VirtualClock(START)):
        assert clock.now() == clock.now() == START
        clock.sleep(3600)
        assert not clock.wait(over, 60)
        assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=3660), 3660)
        over.set()
        assert clock.wait(over, 60)
        assert clock.monotonic() == 3660
    assert clock.now() > START + timedelta(days=1)


def test_the_clock_is_restored_when_the_block_raises() -> None:
    before = clock.monotonic()
    with pytest.raises(RuntimeError), clock.use(VirtualClock(START)):
        raise RuntimeError
    assert clock.monotonic() >= before
