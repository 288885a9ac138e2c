"""What every step of the tour does: a title, bars while it lasts, and a name for it if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amend.client import AsyncClient
from amend.demo.screen import Bar, Screen
from amend.responses import Erasure, Job

TIMEOUT = 170.0
"""Seconds that any one job may take before the tour gives up."""
STATES = {"received": 0.0, "adapting": 0.2, "verifying": 0.6, "purging": 0.8, "completed": 1.0}
# By request alone, so that each step shows what it is about.
MANUAL_POLICY = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}


class StepFailed(Exception):
    """Which step; its cause is why."""


class Steps:
    """A client, and where the steps are shown."""

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
        """Have a person forgotten by all models; the erasure, once it is completed."""
        asked = await self.client.erase(subject, reason="the tour")

        def show(erasure: Erasure) -> None:
            bar(STATES.get(erasure.state, 0.0), erasure.state)

        return await self.client.wait_for_erasure(asked, progress=show, timeout=TIMEOUT)
