"""What a verification found: one check per row, and what was not proven."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from amend.errors import AmendError

T = TypeVar("T")


class BundleError(AmendError):
    """A file cannot be read as a bundle, a key or a head. Nothing was verified."""


class Refuted(Exception):
    """A check failed. The message says what contradicts what."""


class Undecided(Exception):
    """A check could be neither passed nor failed. The message says what is missing."""


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_ESTABLISHED = "not established"


@dataclass(frozen=True)
class Check:
    """One check: what was checked, how, and the result."""

    what: str
    means: str
    result: Result
    detail: str = ""


@dataclass
class Verification:
    """The checks of a bundle, and what they do not prove."""

    checks: list[Check] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there are checks and every one of them passed."""
        return bool(self.checks) and all(check.result is Result.PASSED for check in self.checks)

    def check(self, what: str, means: str, examine: Callable[[], tuple[T, str]]) -> T | None:
        """Record one check. `examine` returns a value and a detail, or raises; the value is None if it raised."""
        try:
            value, detail = examine()
        except (Refuted, Undecided) as problem:
            self.reject(what, means, problem)
        except MemoryError:
            self.reject(what, means, Undecided("This computer has too little memory for the check."))
        else:
            self.checks.append(Check(what, means, Result.PASSED, detail))
            return value
        return None

    def reject(self, what: str, means: str, problem: Refuted | Undecided) -> None:
        """Record a check that did not pass."""
        result = Result.FAILED if isinstance(problem, Refuted) else Result.NOT_ESTABLISHED
        self.checks.append(Check(what, means, result, str(problem)))
