"""The units (mean and scale) of number columns that were added before any example had a value in them.

A change of columns is adapted to at once, usually before the first examples with the new columns arrive. A missing
value is encoded as 0 whatever the unit, so the unit can be measured once the first values are there, and all that the
model knows of its past remains valid.
"""

import math
from copy import deepcopy
from dataclasses import replace

from core.kprior import Data, State
from core.kprior.data.examples import chunks_of
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.passes.moments import Moments
from core.ledger import passes
from core.ledger.layouts import Layout
from core.tables.models import Model
from core.tables.versions import Version
from worker.versions.snapshot import ModelSnapshot


def lacks_units(state: State) -> bool:
    """Whether a column may have been added when no example, or a single one, had a value in it: its unit is unknown."""
    encoder = state.predictor.encoder
    return isinstance(encoder, TableEncoder) and encoder.lacks_units


def find_units(snapshot: ModelSnapshot) -> State | None:
    """The tip, if a training from scratch should keep its units, so that the penalty means the same; None if the units
    should be measured anew: those of a tip that was trained on erased data may depend on it."""
    current = snapshot.load_or_none(snapshot.tip)
    if current is None or not snapshot.has_schema_of(current):
        return None
    if "trees" in (snapshot.spec["architecture"]["kind"], current.spec["architecture"]["kind"]):
        return None  # a retrain learns the splits anew, and trees have no units
    encoder = current.predictor.encoder
    if snapshot.erasing and not (snapshot.imported and isinstance(encoder, TableEncoder) and encoder.is_plain):
        return None
    with snapshot.context.database.read() as session:
        has_new_columns = session.get_one(Model, snapshot.model_id).layout_position > 0
    return None if has_new_columns and lacks_units(current) else current


def measure_new_columns(snapshot: ModelSnapshot, tip: Version, parent: State, added: Data) -> State:
    """The tip's state with the units of columns whose first values are among the added examples.

    A prior mean (`toward`) is given in the units of the columns; where there is one, a retrain has to set them.
    """
    encoder = parent.predictor.encoder
    has_prior_mean = any("toward" in spec["regularizer"] for spec in (parent.spec, snapshot.spec))
    if has_prior_mean or not isinstance(encoder, TableEncoder) or not encoder.lacks_units:
        return parent
    new = columns_without_past(snapshot, tip, encoder)
    if not new:
        return parent
    parent = replace(parent, predictor=deepcopy(parent.predictor))  # others read the tip's state as well
    encoder = parent.predictor.encoder
    assert isinstance(encoder, TableEncoder)
    seen = Moments(encoder.numbers)
    for chunk in chunks_of([added]):
        seen.add(chunk)
    measured = [i for i in new if seen.count[i] > 0]
    mean, scale = encoder.mean.clone(), encoder.scale.clone()
    encoder.set_units(seen.mean, seen.deviation)
    mean[measured], scale[measured] = encoder.mean[measured], encoder.scale[measured]
    encoder.mean.copy_(mean)
    encoder.scale.copy_(scale)
    return parent


def columns_without_past(snapshot: ModelSnapshot, tip: Version, encoder: TableEncoder) -> list[int]:
    """Indices of the encoder's numbers that have no value in any example of the tip."""
    database, spec = snapshot.context.database, snapshot.spec
    with database.read() as session:
        layout = Layout.at(session, snapshot.model_id, spec, tip.position)
    if not layout.steps or (conversion := layout.steps[0].input) is None:
        return []
    # in examples from before the first change, a new column has the constant that the change gave, if any
    sources = [conversion.columns[j] for j in encoder.numbers]
    new = [i for i, source in enumerate(sources) if source.index is None and math.isnan(source.constant)]
    for chunk in passes.read_added(database, snapshot.model_id, spec, int(layout.positions[0]), tip.position):
        missing = chunk.x[:, encoder.numbers].isnan().all(0)
        new = [i for i in new if missing[i]]
        if not new:
            break
    return new
