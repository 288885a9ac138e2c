"""All tables of the database. The functions that use them are in the packages of their nouns."""

from core.database import Base
from core.tables import (
    analyses,
    audit,
    bookkeeping,
    encoders,
    erasures,
    jobs,
    journal,
    keys,
    ledger,
    models,
    quality,
    register,
    tracking,
    versions,
    webhooks,
)

__all__ = [
    "Base",
    "analyses",
    "audit",
    "bookkeeping",
    "encoders",
    "erasures",
    "jobs",
    "journal",
    "keys",
    "ledger",
    "models",
    "quality",
    "register",
    "tracking",
    "versions",
    "webhooks",
]
