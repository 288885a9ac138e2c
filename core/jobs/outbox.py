"""The outbox: sends the messages about committed jobs, by a function that the caller provides."""

from collections.abc import Callable

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.jobs.queries import unsent_messages
from core.tables.jobs import Job, Outbox

BATCH_SIZE = 1000
"""Number of messages that are read from the outbox at a time."""
Send = Callable[[str, str], None]
"""Sends a job's id to a queue, or raises."""


def flush(database: Database, send: Send) -> int:
    """Send all pending messages; returns how many. After a crash, some may be sent twice; none is lost."""
    sent = 0
    while True:
        with database.read() as session:
            rows = unsent_messages(session, BATCH_SIZE)
        for _, job_id, queue in rows:
            send(job_id, queue)
        if rows:
            with database.write() as session:
                session.execute(delete(Outbox).where(Outbox.id.in_([row[0] for row in rows])))
                mark_sent(session, [row[1] for row in rows])
        sent += len(rows)
        if len(rows) < BATCH_SIZE:
            return sent


def mark_sent(session: Session, job_ids: list[str]) -> None:
    session.execute(update(Job).where(Job.id.in_(job_ids)).values(sent_at=now()))
