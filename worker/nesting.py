"""Running one job from within another: here, or wherever it runs already."""

from __future__ import annotations

import time

from core.jobs.tables import ENDED, Job, JobState
from worker.task import Task

LOOK = 0.5
"""Seconds between two looks at a job that another worker runs."""


def run_to_end(task: Task, job_id: str, phrase: str) -> dict[str, str] | None:
    """Have a job run to its end; its error if it failed."""
    while True:
        task.progress(0.05, phrase)
        task.run(task.context, job_id)
        with task.context.database.read() as session:
            job = session.get(Job, job_id)
            if job is None or job.state in ENDED:
                break
        time.sleep(LOOK)
    if job is not None and job.state is not JobState.SUCCEEDED:
        return job.error or {"code": "job_ended", "detail": f"the job was {job.state}"}
    return None
