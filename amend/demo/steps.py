"""Shared by all steps of the demo: titles, progress bars and errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from amend.client import AsyncClient
from amend.demo.screen import Bar, Screen
from amend.responses import Erasure, Job

TIMEOUT = 170.0
"""Seconds after which the demo gives up on a job."""
STATES = {"received": 0.0, "adapting": 0.2, "verifying": 0.6, "purging": 0.8, "completed": 1.0}
# No automatic work, so that each step shows exactly one change.
MANUAL_POLICY = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}


class StepFailed(Exception):
    """A step failed. The message is its title; ``__cause__`` is the reason."""


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

    async def wait(self, job: Job | str, bar: Bar, prefix: str = "") -> Job:
        return await self.client.wait(
            job, progress=lambda found: bar(found.progress, prefix + (found.message or found.state)), timeout=TIMEOUT
        )

    async def erase_person(self, subject: str, bar: Bar) -> Erasure:
        """Erase a person from all models, and return the completed erasure."""
        requested = await self.client.erase(subject, reason="demo")

        def show(erasure: Erasure) -> None:
            bar(STATES.get(erasure.state, 0.0), erasure.state)

        return await self.client.wait_for_erasure(requested, progress=show, timeout=TIMEOUT)
