"""Any two versions of a model side by side: their specs, and how they differ on the same rows.

Called by the service. The cost does not grow with the ledger, because only the stored sample of the holdout is read.
"""

from collections.abc import Mapping
from dataclasses import replace

from core.database import Database
from core.kprior import State
from core.kprior.data.schema_conversion import same_schema
from core.ledger.holdout_sample import SampledRows, as_sample, update_sample
from core.ledger.spec_history import spec_at
from core.models.policy import policy_of
from core.quality.scored_rows import MetricOptions
from core.quality.version_comparison import PairedEvaluation, compare
from core.tables.ledger import HoldoutSample
from core.tables.models import Model

MAX_ROWS = 20_000
"""Maximum number of rows. A policy may ask for more, but only workers have the time for them."""
NUMBERS_PER_CHUNK = 2**22
"""Predicted numbers in one chunk; with thousands of classes, each row has thousands."""


def compare_on_holdout(database: Database, model: Model, one: State, other: State) -> PairedEvaluation:
    """Compare two versions on the holdout rows that are in force now."""
    options = MetricOptions.of(policy_of(model))
    if not model.holdout_count:
        return compare(one, other, (), options)
    rows = holdout_rows(database, model)
    if not all(same_schema(state.spec, rows.layout.spec) for state in (one, other)):
        return compare(one, other, (), options)  # the current rows cannot be read by both versions
    rows.layout.chunk = max(1, min(rows.layout.chunk, NUMBERS_PER_CHUNK // one.predictor.family.outputs))
    return compare(one, other, rows, options)


def holdout_rows(database: Database, model: Model) -> SampledRows:
    """The rows of the stored sample, without rows added since the last job and without removed rows."""
    with database.read() as session:
        sample = as_sample(session.get(HoldoutSample, model.id))
    if sample is None:  # an erasure has deleted it
        sample = update_sample(database, model.id, model.head, policy_of(model).evaluation.rows)
    sample = replace(sample, size=min(sample.size, MAX_ROWS)).with_rows(sample.rows)
    with database.read() as session:
        spec = spec_at(session, model.id, model.spec, model.head)
    rows = SampledRows(database, model.id, spec, model.head, sample.rows)
    rows.skip_unencoded = True
    return rows


def spec_differences(
    one: Mapping[str, object], other: Mapping[str, object], prefix: str = ""
) -> list[tuple[str, object, object]]:
    """The fields in which two specs differ: dotted name, and the value in each.

    >>> spec_differences({"regularizer": {"kind": "l2", "delta": 1}}, {"regularizer": {"kind": "l2", "delta": 5}})
    [('regularizer.delta', 1, 5)]
    """
    differences: list[tuple[str, object, object]] = []
    for name in dict.fromkeys((*one, *other)):
        left, right = one.get(name), other.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            differences += spec_differences(left, right, f"{prefix}{name}.")
        elif left != right:
            differences.append((prefix + name, left, right))
    return differences
