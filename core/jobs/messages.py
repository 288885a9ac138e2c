"""Messages to the workers: what can be sent, and how. They carry the id of a job and no more."""

from __future__ import annotations

from celery import Celery

RUN = "amend.run"
"""The task that runs a job; its only argument is the job's id."""
TRACK = "amend.track"
TRACKING = "tracking"
"""The queue of what MLflow is to be told: dashboards must not keep jobs waiting."""
SOON = 2.0


def sender(broker: str) -> Celery:
    """A Celery application that sends and takes nothing; it gives up soon while the broker is down."""
    # the fixup for Django, which is on by default, imports the worker
    celery = Celery("amend", broker=broker, set_as_current=False, fixups=[])
    celery.conf.broker_transport_options = {"socket_connect_timeout": SOON, "socket_timeout": SOON}
    return celery


def send_job(celery: Celery, job_id: str, queue: str) -> None:
    celery.send_task(RUN, [job_id], queue=queue, retry=False)


def send_track(celery: Celery) -> None:
    # one that waits for longer is not needed any more: the scheduler sends another
    celery.send_task(TRACK, queue=TRACKING, expires=60, retry=False)
