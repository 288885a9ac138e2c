"""A service of two processes keeps what one process promises."""

from __future__ import annotations

import pytest

from tests.conftest import BACKENDS
from tests.endurance.conftest import Start
from tests.endurance.test_kills import check_kills
from tests.endurance.test_load import check_eight_writers

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_are_as_good_as_one(start: Start, backend: str, subtests: pytest.Subtests) -> None:
    stack = start(backend, 2)
    with subtests.test("what eight writers send is there once, and nobody is told to wait"):
        check_eight_writers(stack)
    with subtests.test("every acknowledged batch survives a kill, and none is there by half"):
        check_kills(stack)
