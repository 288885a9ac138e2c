"""Any two versions of a model side by side: what they were made as, and how they differ on the same rows.

Called by the service, on request. It costs the same however long the ledger is: it looks at the sample of the holdout
that is kept for that, and makes no pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.database import Database
from core.kprior import State
from core.kprior.data.conversion import same_schema
from core.ledger.holdout import SampledRows, as_sample, update_sample
from core.ledger.specs import spec_at
from core.models.policy import policy_of
from core.tables.ledger import HoldoutSample
from core.tables.models import Model
from core.versions.comparison import PairedEvaluation, compare

MAX_ROWS = 20_000
"""Of the sample: a policy may ask for more, but only a worker has time for them."""
NUMBERS_PER_CHUNK = 2**22
"""Predicted numbers of one chunk: with thousands of classes, each row has that many."""


def compare_on_holdout(database: Database, model: Model, one: State, other: State) -> PairedEvaluation:
    """Figures of two versions on the holdout rows that are in force now."""
    if not model.holdout_count:
        return compare(one, other, ())
    rows = holdout_rows(database, model)
    if not all(same_schema(state.spec, rows.layout.spec) for state in (one, other)):
        return compare(one, other, ())  # rows of today are none that both of them can read
    rows.layout.chunk = max(1, min(rows.layout.chunk, NUMBERS_PER_CHUNK // one.predictor.family.outputs))
    return compare(one, other, rows)


def holdout_rows(database: Database, model: Model) -> SampledRows:
    """The rows of the kept sample: what came since the last job is not among them yet, what went is not any more."""
    with database.read() as session:
        kept = as_sample(session.get(HoldoutSample, model.id))
    if kept is None:  # an erasure had it made anew
        kept = update_sample(database, model.id, model.head, policy_of(model).evaluation.rows)
    kept = replace(kept, size=min(kept.size, MAX_ROWS)).with_rows(kept.rows)
    with database.read() as session:
        spec = spec_at(session, model.id, model.spec, model.head)
    return SampledRows(database, model.id, spec, model.head, kept.rows)


def spec_differences(
    one: Mapping[str, object], other: Mapping[str, object], prefix: str = ""
) -> list[tuple[str, object, object]]:
    """What differs between two specs: its dotted name, and what it is in each.

    >>> spec_differences({"regularizer": {"kind": "l2", "delta": 1}}, {"regularizer": {"kind": "l2", "delta": 5}})
    [('regularizer.delta', 1, 5)]
    """
    found: list[tuple[str, object, object]] = []
    for name in dict.fromkeys((*one, *other)):
        left, right = one.get(name), other.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            found += spec_differences(left, right, f"{prefix}{name}.")
        elif left != right:
            found.append((prefix + name, left, right))
    return found
