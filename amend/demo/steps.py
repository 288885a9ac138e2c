"""Shared by all steps of the demo: titles, progress bars, measurements and errors."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from amend.client import AsyncClient
from amend.demo.screen import Bar, Screen
from amend.responses import Erasure, Job, Version

TIMEOUT = 600.0
"""Seconds after which the demo gives up on a job."""
STATES = {"received": 0.0, "adapting": 0.2, "verifying": 0.6, "purging": 0.8, "completed": 1.0}
# No automatic work, so that each step shows exactly one change.
MANUAL_POLICY = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}


class StepFailed(Exception):
    """A step failed. The message is its title; ``__cause__`` is the reason."""


@dataclass(frozen=True)
class Measured:
    """What a change took, as the client sees it: from the request to the response that it is done."""

    what: str
    seconds: float
    passes: float | None = None
    """Over all rows."""
    bound: float | None = None
    """On the distance to a full retrain, relative to the length of the weights."""


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def measure(self, what: str, version: Version) -> Measured:
        """The time until now, with the passes and the bound of the version that was made."""
        bound = version.certificate.relative if version.certificate is not None else None
        return Measured(what, self.seconds, version.cost.data_passes, bound)


class Steps:
    """A client, and the screen that shows the steps."""

    def __init__(self, client: AsyncClient, screen: Screen) -> None:
        self.client, self.screen = client, screen

    @contextmanager
    def report_step(self, title: str) -> Iterator[None]:
        self.screen.head(title)
        try:
            yield
        except Exception as error:
            raise StepFailed(title) from error

    async def wait(self, job: Job | str | None, bar: Bar, prefix: str = "") -> Job:
        assert job is not None
        return await self.client.wait(
            job, progress=lambda found: bar(found.progress, prefix + (found.message or found.state)), timeout=TIMEOUT
        )

    async def version_of(self, model: str, job: Job | str | None, bar: Bar) -> Version:
        """Wait for a job and return its version."""
        number = (await self.wait(job, bar)).version
        assert number is not None
        return await self.client.version(model, number)

    async def erase_person(self, subject: str, bar: Bar) -> Erasure:
        """Erase a person from all models, and return the completed erasure."""
        requested = await self.client.erase(subject, reason="demo")

        def show(erasure: Erasure) -> None:
            bar(STATES.get(erasure.state, 0.0), erasure.state)

        return await self.client.wait_for_erasure(requested, progress=show, timeout=TIMEOUT)
