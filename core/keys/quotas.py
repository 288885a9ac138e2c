"""Quotas of keys: what a key may use in a day, and how many models it may have."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, time, timedelta

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, dialect_insert
from core.errors import TooLarge, TooMany, Unavailable
from core.tables.keys import Key, KeyUsage
from core.tables.models import Model

CODE = "quota_exceeded"


class Quota(BaseModel):
    """What a key may use. Null: no limit. Days begin at midnight UTC."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    requests_per_second: float | None = Field(
        None, gt=0, description="Average; up to ten seconds' worth at once. Replaces AMEND_RATE_LIMIT for this key."
    )
    rows_per_day: int | None = Field(
        None, ge=1, description="Examples added, recorded or replaced, duplicates included."
    )
    bytes_per_day: int | None = Field(None, ge=1, description="Size of the bodies of these examples, decompressed.")
    models: int | None = Field(None, ge=0, description="Models that the key has created and that still exist.")


@contextmanager
def charged(database: Database, key_id: str, quota: Quota | None, rows: int, size: int) -> Iterator[None]:
    """Count examples against the quota of a key before they are stored in other transactions, unless that fails."""
    if not limits_examples(quota):
        yield
        return
    day = today()
    with database.write() as session:
        charge(session, key_id, quota, rows, size)
    try:
        yield
    except BaseException:
        with suppress(Unavailable), database.write() as session:
            add_usage(session, key_id, day, -rows, -size)
        raise


def limits_examples(quota: Quota | None) -> bool:
    return quota is not None and (quota.rows_per_day is not None or quota.bytes_per_day is not None)


def today() -> str:
    return now().date().isoformat()


def charge(session: Session, key_id: str, quota: Quota | None, rows: int, size: int) -> None:
    """Count examples against the quota of a key in the transaction that stores them. Raises TooLarge if they exceed it
    on their own, and TooMany if they exceed what is left of today.
    """
    if quota is None or not limits_examples(quota):
        return
    day = today()
    used = add_usage(session, key_id, day, rows, size)
    limits = (quota.rows_per_day, quota.bytes_per_day)
    for unit, limit, given, total in zip(("rows", "bytes"), limits, (rows, size), used, strict=True):
        if limit is not None and given > limit:
            raise TooLarge(CODE, f"The request has {given} {unit}, and this key may add {limit} {unit} per day.")
        if limit is not None and total > limit:
            left = limit - (total - given)
            message = f"This key may add {limit} {unit} per day, of which {left} are left. The request has {given}."
            raise TooMany(CODE, message, seconds_until_tomorrow())
    session.execute(delete(KeyUsage).where(KeyUsage.key_id == key_id, KeyUsage.day < day))


def add_usage(session: Session, key_id: str, day: str, rows: int, size: int) -> tuple[int, int]:
    """Add to the usage of a day, and lock it until the commit; returns the new totals."""
    new = dialect_insert(session, KeyUsage).values(key_id=key_id, day=day, rows=rows, bytes=size)
    sums = {"rows": KeyUsage.rows + rows, "bytes": KeyUsage.bytes + size}
    counted = new.on_conflict_do_update(index_elements=["key_id", "day"], set_=sums)
    total_rows, total_bytes = session.execute(counted.returning(KeyUsage.rows, KeyUsage.bytes)).one()
    return total_rows, total_bytes


def seconds_until_tomorrow() -> int:
    midnight = datetime.combine(now().date() + timedelta(days=1), time(), UTC)
    return int((midnight - now()).total_seconds()) + 1


def check_models(session: Session, key_id: str, quota: Quota | None) -> None:
    """Raise TooMany if a key has as many models as it may have. Concurrent requests of the key wait for the commit."""
    if quota is None or quota.models is None:
        return
    session.get(Key, key_id, with_for_update=True)
    count = session.scalar(select(func.count()).select_from(Model).where(Model.created_by == key_id)) or 0
    if count >= quota.models:
        message = f"This key has created {count} models and may have {quota.models}. Delete one of them first."
        raise TooMany(CODE, message)
