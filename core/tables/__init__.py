"""All tables of the database. The functions that use them are in the packages of their nouns."""

from core.database import Base
from core.tables import bookkeeping, erasures, jobs, keys, ledger, models, quality, tracking, versions, webhooks

__all__ = [
    "Base",
    "bookkeeping",
    "erasures",
    "jobs",
    "keys",
    "ledger",
    "models",
    "quality",
    "tracking",
    "versions",
    "webhooks",
]
