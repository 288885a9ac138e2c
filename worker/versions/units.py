"""The units of number columns that came before any example had a value in them.

A change of columns is adapted to at once, as a rule before the first examples by it come. What enters a model for a
missing value is 0, whatever the unit: so the unit can be measured when the first values are there, and all that the
model knows of its past stays true.
"""

from __future__ import annotations

import math

from core.kprior import Data, State
from core.kprior.data.examples import chunks_of
from core.kprior.model.encoders import TableEncoder
from core.kprior.passes.moments import MIN_COUNT, Moments
from core.ledger import passes
from core.ledger.layouts import Layout
from core.tables.models import Model
from core.tables.versions import Version
from worker.versions.snapshot import ModelSnapshot


def lacks_units(state: State) -> bool:
    """Whether a column may have come when examples had no values in it, or a single one: nobody knew its unit."""
    encoder = state.predictor.encoder
    return isinstance(encoder, TableEncoder) and encoder.lacks_units


def find_units(snapshot: ModelSnapshot) -> State | None:
    """The tip, if a training from scratch is to measure columns in its units, so that a penalty means the same; None if
    it is to measure them anew."""
    current = snapshot.load_or_none(snapshot.tip)
    if current is None or not snapshot.reads(current):
        return None
    with snapshot.context.database.read() as session:
        came = session.get_one(Model, snapshot.model_id).layout > 0
    return None if came and lacks_units(current) else current


def measure_new_columns(snapshot: ModelSnapshot, tip: Version, parent: State, added: Data) -> None:
    """Give the tip's state the units of columns whose first values are among the added examples.

    Numbers that weights are drawn to are told in the units of the columns; where there are any, a retrain has to do it.
    """
    encoder = parent.predictor.encoder
    drawn = any("toward" in spec["regularizer"] for spec in (parent.spec, snapshot.spec))
    if drawn or not isinstance(encoder, TableEncoder) or not encoder.lacks_units:
        return
    new = columns_without_past(snapshot, tip, encoder)
    if not new:
        return
    seen = Moments(encoder.numbers)
    for chunk in chunks_of([added]):
        seen.add(chunk)
    measured = [place for place in new if seen.count[place] > 0]
    mean, scale = encoder.mean.clone(), encoder.scale.clone()
    encoder.set_units(seen.mean, (seen.square / seen.count.clamp(min=MIN_COUNT)).sqrt())
    mean[measured], scale[measured] = encoder.mean[measured], encoder.scale[measured]
    encoder.mean.copy_(mean)
    encoder.scale.copy_(scale)


def columns_without_past(snapshot: ModelSnapshot, tip: Version, encoder: TableEncoder) -> list[int]:
    """Which of the encoder's numbers no example has a value of that the tip stands for."""
    database, spec = snapshot.context.database, snapshot.spec
    with database.read() as session:
        layout = Layout.at(session, snapshot.model_id, spec, tip.position)
    if not layout.steps or (came := layout.steps[0].input) is None:
        return []
    # those from before the first change have what a change said of them, or what they always had
    found = [came.columns[j] for j in encoder.numbers]
    new = [place for place, source in enumerate(found) if source.index is None and math.isnan(source.constant)]
    for chunk in passes.read_added(database, snapshot.model_id, spec, int(layout.positions[0]), tip.position):
        missing = chunk.x[:, encoder.numbers].isnan().all(0)
        new = [place for place in new if missing[place]]
        if not new:
            break
    return new
