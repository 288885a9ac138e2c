"""Running one job from within another, in this process, or waiting for the worker that already runs it."""

from core import clock
from core.jobs.queries import abandoned_jobs
from core.tables.documents import JobError
from core.tables.jobs import ENDED, Job, JobState
from worker.job_attempt import JobAttempt

POLL_SECONDS = 0.5
"""Interval between checks of a job that another worker runs."""


def run_nested(attempt: JobAttempt, job_id: str, phrase: str) -> JobError | None:
    """Run a job, or wait for the worker that runs it; returns its error if it failed."""
    while True:
        attempt.progress(0.05, phrase)
        with attempt.context.database.read() as session:
            wanted = session.get(Job, job_id)
            # a job whose worker was lost blocks this one, and there may be no other worker to end it
            blocking = abandoned_jobs(session, wanted) if wanted is not None else []
        for id_ in (*blocking, job_id):
            attempt.run(attempt.context, id_)
        with attempt.context.database.read() as session:
            job = session.get(Job, job_id)
            if job is None or job.state in ENDED:
                break
        clock.sleep(POLL_SECONDS)
    if job is not None and job.state is not JobState.SUCCEEDED:
        return job.error or {"code": "job_ended", "detail": f"The job was {job.state}."}
    return None
