"""What the promotion gate would say about the version that a change would give, on the same rows as the gate itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.analyses.analysed_model import AnalysedModel
from core.analyses.hypothetical_examples import Change
from core.kprior import Examples, State
from core.kprior.data.schema_conversion import same_schema
from core.kprior.model.spec import loss_of
from core.promotion.gate import ComparedRows, Reference, not_compared, run_gate
from core.quality.clusters import cluster
from core.quality.compared_rows import draw_older, predict_as_of, read_subjects
from core.quality.known_classes import KnownClasses, only_known_labels
from core.quality.queries import GateInputs
from core.quality.scored_rows import ScoredRows, concatenate
from core.quality.scoring import score
from core.quality.segments import split_into_segments
from core.quality.standard_errors import MIN_ROWS
from core.tables.models import Model
from core.tables.versions import Version


@dataclass(frozen=True)
class Outcome:
    """A change, and what the model predicts for the holdout before and after it."""

    model: AnalysedModel
    change: Change
    state: State
    """The model after the change."""
    before: ScoredRows
    after: ScoredRows
    old: list[Examples]
    """The rows of `before`, in the present columns and classes."""
    new: list[Examples]
    """The rows of `after`, in the new columns and classes."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the rows of `after`; those of added rows are beyond the head."""
        keys = [chunk.key.numpy() for chunk in self.new]
        return np.concatenate(keys) if keys else np.zeros(0, np.int64)

    def clusters(self, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Numbers of the subjects of rows, added ones included; None if no row has one."""
        return self.model.clusters(positions, self.change.subjects)

    @property
    def comparable(self) -> bool:
        """Whether both predict the same rows and the same kind of target."""
        return len(self.before) == len(self.after) and self.before.target == self.after.target

    def judge(self) -> dict[str, Any]:
        """The result of the gate."""
        model, policy = self.model, self.model.policy.gate
        with model.database.read() as session:
            inputs = GateInputs.read(session, session.get_one(Model, model.model_id), model.at)
        if inputs.champion is None:
            return dict(not_compared("first_version", policy))
        champion = self.refer_to(inputs.champion)
        confirmed = champion if inputs.confirmed is not None else None
        if inputs.confirmed is not None and inputs.confirmed.number != champion.number:
            confirmed = self.refer_to(inputs.confirmed)
        if confirmed is not None:
            confirmed = replace(confirmed, carried=inputs.carried)
        gate = run_gate(champion, confirmed, inputs.alarms, policy)
        adds = any(rows is not None and len(rows) for rows in (self.change.added, self.change.added_holdout))
        if not adds and not inputs.has_additions:
            gate["action"] = "warn"  # a version that learns no new examples is never rejected
        return dict(gate)

    def refer_to(self, version: Version) -> Reference:
        """An older version, with its predictions and those after the change."""
        model = self.model
        ours = model.is_tip and version.number == model.tip.number
        state = model.state if ours else model.load(version)
        if state is None:
            return Reference(version.number, version.position, None, "version_purged")
        same_loss = loss_of(state.spec) == loss_of(self.change.spec.spec)
        rows = self.compare_with(version, state, ours)
        return Reference(version.number, version.position, rows, same_loss=same_loss)

    def compare_with(self, version: Version, state: State, ours: bool) -> ComparedRows:
        """The holdout, and older rows if it has few, as an older version and the new one predict them."""
        model, options, positions, candidate = self.model, self.model.options, self.positions, self.after
        older = self.draw_older(version)
        converted = [self.change.spec.convert(chunk) for chunk in older]
        if older:
            more, (rows,) = score([self.state], converted, options)
            positions, candidate = np.concatenate([positions, more]), concatenate([candidate, rows])
        chosen, known = np.ones(len(positions), bool), self.find_known(version, state)
        if known is not None:
            earlier = positions <= version.position
            chosen = known.has(candidate.y) | ~earlier
            candidate = known.restrict(candidate, self.state, [*self.new, *converted], earlier, options)
        if self.change.spec.changes_rows or not same_schema(state.spec, model.spec):
            chosen &= positions <= version.position
            old = self.predict_earlier(version, state, older, positions[chosen], known)
        else:
            data = [*self.old, *older]
            old = score([state], data, options)[1][0] if older or not ours else self.before
            old = old if known is None else known.restrict(old, state, data, earlier, options).take(chosen)
        with model.database.read() as session:
            old = only_known_labels(session, model.model_id, version, state.spec, old)
        columns = model.policy.segments
        segments = split_into_segments(self.change.spec.spec, columns, [*self.new, *converted], MIN_ROWS)
        clusters = self.clusters(positions)
        if older:
            subjects = model.known_subjects | read_subjects(model.database, model.model_id, older)
            subjects |= self.change.subjects
            clusters = cluster(positions, subjects) if subjects else None
        return ComparedRows(
            positions[chosen],
            old,
            candidate.take(chosen),
            None if clusters is None else clusters[chosen],
            [segment.take(chosen) for segment in segments],
        )

    def draw_older(self, version: Version) -> list[Examples]:
        """Older rows of the holdout that the change does not remove, if the sample has few."""
        model, gone = self.model, torch.from_numpy(self.change.removed_holdout.copy())
        where = (model.database, model.model_id, model.spec, model.at, version.position)
        found = [rows.take(~torch.isin(rows.key, gone)) for rows in draw_older(*where, model.holdout_positions)]
        return [rows for rows in found if len(rows)]

    def find_known(self, version: Version, state: State) -> KnownClasses | None:
        """The classes that an older version had examples of, if the model has others after the change."""
        model, change = self.model, self.change.spec
        with model.database.read() as session:
            return KnownClasses.of(
                session, model.model_id, version, state.spec, change.spec, model.at, change=change.classes
            )

    def predict_earlier(
        self,
        version: Version,
        state: State,
        older: list[Examples],
        positions: NDArray[np.int64],
        known: KnownClasses | None,
    ) -> ScoredRows:
        """What an older version predicts for rows at or before its own position, in its own columns and classes."""
        model, own = self.model, None if known is None else known.own
        if same_schema(state.spec, model.spec):
            rows = [chunk.take(torch.isin(chunk.key, torch.from_numpy(positions))) for chunk in (*self.old, *older)]
            return score([state], rows, model.options, own)[1][0]
        return predict_as_of(model.database, model.model_id, state, version.position, positions, model.options, own)
