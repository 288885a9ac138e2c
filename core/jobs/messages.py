"""Celery messages to the workers. They carry the id of a job and nothing else."""

from celery import Celery

RUN_TASK = "amend.run"
"""The Celery task that runs a job; its only argument is the job's id."""
TRACK_TASK = "amend.track"
"""The Celery task that publishes pending events to MLflow."""
TRACKING_QUEUE = "tracking"
"""The queue of that task, separate so that publishing does not delay jobs."""
BROKER_TIMEOUT_SECONDS = 2.0


def sender(broker: str) -> Celery:
    """A Celery application that only sends messages, with a short timeout in case the broker is down."""
    # without the default fixup for Django, which imports the worker
    celery = Celery("amend", broker=broker, set_as_current=False, fixups=[])
    celery.conf.broker_transport_options = {
        "socket_connect_timeout": BROKER_TIMEOUT_SECONDS,
        "socket_timeout": BROKER_TIMEOUT_SECONDS,
    }
    return celery


def send_job(celery: Celery, job_id: str, queue: str) -> None:
    celery.send_task(RUN_TASK, [job_id], queue=queue, retry=False)


def send_track(celery: Celery) -> None:
    # the scheduler sends these messages regularly, so an old one is superseded
    celery.send_task(TRACK_TASK, queue=TRACKING_QUEUE, expires=60, retry=False)
