"""What a receipt signs about the version that forgot, besides its weights: the objective and the retained rows.

With them in the signed statement, nobody can exchange the objective or the rows of a bundle for others that fit the
weights.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from core.database import Database
from core.errors import Conflict
from core.register import merkle
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.store import Store

if TYPE_CHECKING:
    from core.versions.exported_objective import RetainedRows


@dataclass(frozen=True)
class RowsCommitment:
    """Number of the retained training rows, and the Merkle root of the salted hashes of their blocks."""

    count: int
    root: str


@dataclass(frozen=True)
class Evidence:
    """What a bundle can carry about a version."""

    # descriptions, not docstrings, because the response of a receipt extends it
    objective: Annotated[
        dict[str, Any] | None,
        Field(description="Parameters of the objective that the version minimises; left out for networks."),
    ] = None
    rows: Annotated[
        RowsCommitment | None,
        Field(description="Number and Merkle root of the retained training rows, if a bundle can carry them."),
    ] = None


def collect_evidence(database: Database, store: Store, model: Model, version: Version) -> Evidence:
    """Read the version's file and, for a linear model, all its rows. The version must have a salt."""
    from core.kprior import State  # imports torch, which the scheduler does not need
    from core.versions.exported_objective import RetainedRows, describe_objective

    assert version.salt is not None
    state = State.from_bytes(store.get(version.file, version.sha256))
    objective = describe_objective(state)
    if objective is None:
        return Evidence()
    try:
        rows = RetainedRows(database, model, version, state, version.salt)
    except Conflict:  # too many
        return Evidence(objective)
    return Evidence(objective, commit_rows(rows))


def commit_rows(rows: "RetainedRows") -> RowsCommitment | None:
    """The commitment to the rows of a version; None if some of them have been deleted since."""
    blocks = rows.commit()
    return None if blocks is None else RowsCommitment(rows.count, merkle.root_of(blocks).hex())


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    return {name: value for name, value in asdict(evidence).items() if value is not None}


def evidence_from(body: Mapping[str, Any]) -> Evidence | None:
    """The evidence in the report of a model; None if it has none."""
    rows = body.get("rows")
    if not body.get("objective"):
        return None
    return Evidence(body["objective"], RowsCommitment(**rows) if rows else None)
