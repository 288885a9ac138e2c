"""Stretches of a pass that a job shares with other workers: who adds up which, and where the sums are.

The asker, who runs the job, notes the stretches; helpers take them under leases of their own and leave the sums in the
store. The asker works on stretches, too, and takes over those whose helper has fallen silent. A stretch is tried by one
helper at most: whatever made it fail, the asker will see for itself.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import ColumnElement, case, delete, exists, or_, select, update

from core.database import Database, now, rows_changed
from core.jobs.leases import Lost
from core.tables.jobs import Job, JobState, Stretch
from core.versions.store import Stored


def at_work() -> ColumnElement[bool]:
    """Whether the job that asks still runs where it was asked from."""
    same = (Job.id == Stretch.job_id, Job.lease_owner == Stretch.asker)
    return exists().where(*same, Job.state == JobState.RUNNING, Job.lease_until > now())


def note(database: Database, job_id: str, asker: str, question: Stored, count: int) -> None:
    """Note all stretches of a pass, for others to take; a job has one pass at a time."""
    with database.write() as session:
        ours = (Job.id == job_id, Job.lease_owner == asker, Job.state == JobState.RUNNING)
        if session.scalar(select(Job.id).where(*ours).with_for_update()) is None:
            raise Lost
        session.execute(delete(Stretch).where(Stretch.job_id == job_id))
        session.add_all(
            Stretch(job_id=job_id, number=number, asker=asker, question=question.file) for number in range(count)
        )


def take(database: Database, job_id: str, owner: str, seconds: float, known: Collection[int]) -> Stretch | None:
    """An open stretch, for a helper: one that it knows already if it can be, else from the end; the asker begins at
    the beginning."""
    with database.write() as session:
        free = (Stretch.job_id == job_id, Stretch.owner.is_(None), at_work())
        familiar = case((Stretch.number.in_(known), 0), else_=1)
        query = select(Stretch).where(*free).order_by(familiar, Stretch.number.desc()).limit(1)
        found = session.scalar(query.with_for_update(skip_locked=True, of=Stretch))
        if found is not None:
            found.owner, found.until = owner, now() + timedelta(seconds=seconds)
            session.flush()
            session.expunge(found)
        return found


def extend(database: Database, stretch: Stretch, owner: str, seconds: float) -> None:
    """Keep a stretch; Lost if it is not ours any more."""
    values = {"until": now() + timedelta(seconds=seconds)}
    with database.write() as session:
        if rows_changed(session, update(Stretch).where(*held(stretch, owner)).values(**values)) == 0:
            raise Lost


def give_back(database: Database, stretch: Stretch, owner: str) -> None:
    """Leave a stretch to the asker, at once."""
    with database.write() as session:
        session.execute(update(Stretch).where(*held(stretch, owner)).values(until=now()))


def finish(database: Database, stretch: Stretch, owner: str, sums: Stored) -> bool:
    """Say where a stretch's sums are; False if nobody wants them any more."""
    values = {"file": sums.file, "sha256": sums.sha256, "until": None}
    with database.write() as session:
        return rows_changed(session, update(Stretch).where(*held(stretch, owner)).values(**values)) == 1


def held(stretch: Stretch, owner: str) -> tuple[ColumnElement[bool], ...]:
    """The stretch, while the helper has it."""
    same = (Stretch.job_id == stretch.job_id, Stretch.number == stretch.number)
    return *same, Stretch.question == stretch.question, Stretch.owner == owner, Stretch.sha256.is_(None)


def take_own(database: Database, job_id: str, asker: str) -> int | None:
    """The first stretch that is open or was left behind, for the asker."""
    with database.write() as session:
        left = or_(Stretch.owner.is_(None), Stretch.until < now())
        query = select(Stretch).where(Stretch.job_id == job_id, Stretch.asker == asker, left)
        found = session.scalar(query.order_by(Stretch.number).limit(1).with_for_update(skip_locked=True))
        if found is None:
            return None
        found.owner, found.until = asker, None
        return found.number


def listed(database: Database, job_id: str, asker: str) -> dict[int, Stretch]:
    """The asker's stretches, by number."""
    with database.read() as session:
        query = select(Stretch).where(Stretch.job_id == job_id, Stretch.asker == asker)
        return {stretch.number: stretch for stretch in session.scalars(query)}


def strike(database: Database, job_id: str, asker: str) -> list[str]:
    """End a pass; the files of its sums, which nothing refers to any more."""
    ours = (Stretch.job_id == job_id, Stretch.asker == asker)
    with database.write() as session:
        files = [file for file in session.scalars(select(Stretch.file).where(*ours)) if file is not None]
        session.execute(delete(Stretch).where(*ours))
    return files


def sweep(database: Database) -> None:
    """Strike the stretches of askers who are gone; their files are litter already."""
    with database.read() as session:
        if session.scalar(select(Stretch.number).where(~at_work()).limit(1)) is None:
            return
    with database.write() as session:
        session.execute(delete(Stretch).where(~at_work()))
