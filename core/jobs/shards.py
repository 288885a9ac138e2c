"""Shards of a pass that a job shares with other workers: who adds up which, and where the sums are.

The asker, who runs the job, notes the shards; helpers take them under leases of their own and leave the sums in the
store. The asker works on shards, too, and takes over those whose helper has fallen silent. A shard is tried by one
helper at most: whatever made it fail, the asker will see for itself.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import ColumnElement, case, delete, exists, or_, select, update

from core.database import Database, now, rows_changed
from core.jobs.leases import Lost
from core.tables.jobs import Job, JobState, Shard
from core.versions.store import Stored


def is_running() -> ColumnElement[bool]:
    """Whether the job that asks still runs where it was asked from."""
    same = (Job.id == Shard.job_id, Job.lease_owner == Shard.asker)
    return exists().where(*same, Job.state == JobState.RUNNING, Job.lease_until > now())


def create(database: Database, job_id: str, asker: str, question: Stored, count: int) -> None:
    """Note all shards of a pass, for others to take; a job has one pass at a time."""
    with database.write() as session:
        ours = (Job.id == job_id, Job.lease_owner == asker, Job.state == JobState.RUNNING)
        if session.scalar(select(Job.id).where(*ours).with_for_update()) is None:
            raise Lost
        session.execute(delete(Shard).where(Shard.job_id == job_id))
        session.add_all(
            Shard(job_id=job_id, number=number, asker=asker, question=question.file) for number in range(count)
        )


def take(database: Database, job_id: str, owner: str, seconds: float, known: Collection[int]) -> Shard | None:
    """An open shard, for a helper: one that it knows already if it can be, else from the end; the asker begins at
    the beginning."""
    with database.write() as session:
        free = (Shard.job_id == job_id, Shard.owner.is_(None), is_running())
        familiar = case((Shard.number.in_(known), 0), else_=1)
        query = select(Shard).where(*free).order_by(familiar, Shard.number.desc()).limit(1)
        found = session.scalar(query.with_for_update(skip_locked=True, of=Shard))
        if found is not None:
            found.owner, found.until = owner, now() + timedelta(seconds=seconds)
            session.flush()
            session.expunge(found)
        return found


def extend(database: Database, shard: Shard, owner: str, seconds: float) -> None:
    """Keep a shard; Lost if it is not ours any more."""
    values = {"until": now() + timedelta(seconds=seconds)}
    with database.write() as session:
        if rows_changed(session, update(Shard).where(*held_by(shard, owner)).values(**values)) == 0:
            raise Lost


def give_back(database: Database, shard: Shard, owner: str) -> None:
    """Leave a shard to the asker, at once."""
    with database.write() as session:
        session.execute(update(Shard).where(*held_by(shard, owner)).values(until=now()))


def finish(database: Database, shard: Shard, owner: str, sums: Stored) -> bool:
    """Say where a shard's sums are; False if nobody wants them any more."""
    values = {"file": sums.file, "sha256": sums.sha256, "until": None}
    with database.write() as session:
        return rows_changed(session, update(Shard).where(*held_by(shard, owner)).values(**values)) == 1


def held_by(shard: Shard, owner: str) -> tuple[ColumnElement[bool], ...]:
    """The shard, while the helper has it."""
    same = (Shard.job_id == shard.job_id, Shard.number == shard.number)
    return *same, Shard.question == shard.question, Shard.owner == owner, Shard.sha256.is_(None)


def take_own(database: Database, job_id: str, asker: str) -> int | None:
    """The first shard that is open or was left behind, for the asker."""
    with database.write() as session:
        left = or_(Shard.owner.is_(None), Shard.until < now())
        query = select(Shard).where(Shard.job_id == job_id, Shard.asker == asker, left)
        found = session.scalar(query.order_by(Shard.number).limit(1).with_for_update(skip_locked=True))
        if found is None:
            return None
        found.owner, found.until = asker, None
        return found.number


def by_number(database: Database, job_id: str, asker: str) -> dict[int, Shard]:
    """The asker's shards, by number."""
    with database.read() as session:
        query = select(Shard).where(Shard.job_id == job_id, Shard.asker == asker)
        return {shard.number: shard for shard in session.scalars(query)}


def delete_pass(database: Database, job_id: str, asker: str) -> list[str]:
    """End a pass; the files of its sums, which nothing refers to any more."""
    ours = (Shard.job_id == job_id, Shard.asker == asker)
    with database.write() as session:
        files = [file for file in session.scalars(select(Shard.file).where(*ours)) if file is not None]
        session.execute(delete(Shard).where(*ours))
    return files


def sweep(database: Database) -> None:
    """Strike the shards of askers who are gone; their files are orphans already."""
    with database.read() as session:
        if session.scalar(select(Shard.number).where(~is_running()).limit(1)) is None:
            return
    with database.write() as session:
        session.execute(delete(Shard).where(~is_running()))
