"""One of the two services: performs the steps of a history, and waits until nothing is left to do after each."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import httpx

from amend.prove.history import Step

STEP_SECONDS = 180.0
POLL_SECONDS = 0.05
UNFINISHED = (
    "SELECT (SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')) + (SELECT count(*) FROM outbox) "
    "+ (SELECT count(*) FROM metadata WHERE name = 'vacuum_due')"
)
"""What must be zero before the next step: with work under way, the order of jobs would depend on the machine."""
FAILED = "SELECT count(*) FROM jobs WHERE state = 'failed'"
"""Must stay zero: without versions, there would be nothing to compare."""
UNPUBLISHED = "SELECT count(*) FROM tracking_events"


class StepFailed(Exception):
    """A step of the history did not succeed, so that there is nothing to compare."""


class Twin:
    """A running service."""

    def __init__(self, name: str, home: Path, url: str, key: str, *other_urls: str) -> None:
        self.name, self.home, self.urls = name, home, (url, *other_urls)
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=STEP_SECONDS, verify=False, trust_env=False)
        self.responses: list[tuple[Step, httpx.Response]] = []
        self.traces: list[str] = []
        """Files in which `find_traces` found something at the end."""

    def perform(self, step: Step) -> None:
        response = self.http.request(step.method, step.path, json=step.body)
        self.responses.append((step, response))
        if response.status_code not in step.statuses:
            raise StepFailed(f"{self.name}: {step.method} {step.path} returned {response.status_code}: {response.text}")
        if step.erasure:
            self.wait_for_receipt(response.json()["id"])
        self.wait_until_idle()
        with closing(connect(self.home / "amend.db")) as connection:
            if connection.execute(FAILED).fetchone()[0]:
                raise StepFailed(f"{self.name}: the job of {step.method} {step.path} failed.")

    def wait_for_receipt(self, erasure: str) -> None:
        end = time.monotonic() + STEP_SECONDS
        while (found := self.http.get(f"/v1/erasures/{erasure}").json())["state"] != "completed":
            if found["state"] == "failed" or time.monotonic() > end:
                raise StepFailed(f"{self.name}: the erasure is {found['state']}: {found['models']}")
            time.sleep(POLL_SECONDS)

    def wait_until_idle(self) -> None:
        """Wait until there is no work, and the scheduler has looked twice and found none."""
        end, quiet_since = time.monotonic() + STEP_SECONDS, self.ticks()
        seen: set[int] = set()
        while len(seen) < 3:
            if self.unfinished():
                seen.clear()
                quiet_since = self.ticks()
            elif (tick := self.ticks()) != quiet_since:
                seen.add(tick)
            if time.monotonic() > end:
                raise StepFailed(f"{self.name}: jobs or events are unfinished after {STEP_SECONDS:.0f} s.")
            time.sleep(POLL_SECONDS)

    def ticks(self) -> int:
        """A number that changes with every tick of the scheduler."""
        file = self.home / "scheduler.alive"
        return file.stat().st_mtime_ns if file.exists() else 0

    def unfinished(self) -> int:
        with closing(connect(self.home / "amend.db")) as connection:
            queries = [UNFINISHED, UNPUBLISHED] if (self.home / "mlflow").exists() else [UNFINISHED]
            return sum(int(connection.execute(query).fetchone()[0]) for query in queries)

    def erased_names(self) -> set[bytes]:
        """Ids and subjects that only examples of erased people had: they begin with the twin's name."""
        texts = (json.dumps(step.body) for step, _ in self.responses if step.body)
        return {name.encode() for text in texts for name in re.findall(rf'"({self.name}-[^"]+)"', text)}

    def find_traces(self) -> list[str]:
        """Files that still contain the id or the subject of an erased example."""
        names = re.compile(b"|".join(re.escape(name) for name in self.erased_names()) or b"(?!)")
        files = (file for file in sorted(self.home.rglob("*")) if file.is_file())
        return [str(file.relative_to(self.home)) for file in files if names.search(file.read_bytes())]


def connect(file: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    return sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)
