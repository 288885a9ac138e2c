"""Every table: what the database holds. Functions that work on them are with their nouns."""

from core import idempotency, metadata, mutex
from core.database import Base
from core.tables import erasures, jobs, keys, ledger, models, tracking, versions

__all__ = [
    "Base",
    "erasures",
    "idempotency",
    "jobs",
    "keys",
    "ledger",
    "metadata",
    "models",
    "mutex",
    "tracking",
    "versions",
]
