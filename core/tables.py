"""Every table, for those who need them all: migrations, and the tests that compare both."""

from core import idempotency, leases, marks
from core.database import Base
from core.erasure import tables as erasure
from core.jobs import tables as jobs
from core.keys import table as keys
from core.ledger import tables as ledger
from core.models import table as models
from core.tracking import tables as tracking
from core.versions import tables as versions

__all__ = [
    "Base",
    "erasure",
    "idempotency",
    "jobs",
    "keys",
    "leases",
    "ledger",
    "marks",
    "models",
    "tracking",
    "versions",
]
