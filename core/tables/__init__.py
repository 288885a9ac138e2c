"""Every table: what the database holds. Functions that work on them are with their nouns."""

from core.database import Base
from core.tables import bookkeeping, erasures, jobs, keys, ledger, models, tracking, versions, webhooks

__all__ = [
    "Base",
    "bookkeeping",
    "erasures",
    "jobs",
    "keys",
    "ledger",
    "models",
    "tracking",
    "versions",
    "webhooks",
]
