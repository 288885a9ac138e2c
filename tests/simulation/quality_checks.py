"""Properties of examples without a label, of test-then-train windows, and of drift reports."""

from __future__ import annotations

import json
from typing import Any

from safetensors.numpy import load

from tests.simulation.observed_state import ObservedState, PendingExample, Violation
from tests.simulation.world import World

WINDOWS = "SELECT id, model_id, scores, rows, first_position, last_position, created_at FROM quality_windows"


class QualityChecks:
    def __init__(self, state: ObservedState, world: World, erased: set[int]) -> None:
        self.state, self.world, self.erased = state, world, erased
        self.before: dict[tuple[int, str], PendingExample] = {}
        """The pending examples after the previous transaction."""
        self.restricted: dict[bytes, set[int]] = {}
        """By person: tokens of pending examples that were deleted while an erasure restricted them."""
        self.scored: dict[int, set[int]] = {}
        """By model: positions that a window counts or counted."""
        self.windows: dict[tuple[int, str], set[int]] = {}
        """Positions of each window, by its id, which may be used again, and the time when it was created."""
        self.scored_until: dict[int, int] = {}
        self.reports: dict[int, str] = {}
        """The drift report of each model."""

    def load(self) -> None:
        """Take over the present state without judging it."""
        self.before = self.state.pending
        self.reports = self.read_reports()
        for row in self.state.rows(WINDOWS):
            self.windows[row["id"], row["created_at"]] = positions_of(row)
            self.scored.setdefault(row["model_id"], set()).update(positions_of(row))

    # Examples without a label

    def check_pending(self) -> None:
        """Counts are right, and an example with a label is not pending any more."""
        used = {(row.model, row.id) for row in self.state.examples.values() if row.removed is None or row.quarantine}
        free = {key for key, row in self.state.pending.items() if not row.restricted}
        if both := used & free:
            raise Violation("label applied twice", f"{sorted(both)} are pending, and have a label.")
        for model, count in self.state.execute("SELECT id, pending_count FROM models"):
            if count != sum(key[0] == model for key in free):
                raise Violation("wrong counts", f"Model {model} records {count} pending examples, but has {free}.")
        for key, row in self.before.items():
            if row.restricted and row.subject is not None and key not in self.state.pending:
                self.restricted.setdefault(row.subject, set()).add(row.token)
        self.before = self.state.pending

    def check_pending_gone(self, subject: bytes, requested_at: str) -> set[int]:
        """No pending example of a person is left when the receipt is written; returns the tokens of those erased."""
        for row in self.state.pending.values():
            if row.subject == subject and (row.restricted or row.created_at < requested_at):
                raise Violation("receipt before purge", f"The example {row.id} without a label is left.")
        return self.restricted.pop(subject, set())

    def check_predictions(self, versions: dict[tuple[int, int], dict[str, Any]]) -> None:
        """No prediction is stored of a version that an erasure purged (it has no hash); retention keeps predictions."""
        rows = [(row.model, row.version, f"pending example {row.id}") for row in self.state.pending.values()]
        query = "SELECT model_id, version, position FROM recorded_predictions WHERE mean IS NOT NULL"
        rows += [(model, version, f"label at {at}") for model, version, at in self.state.execute(query)]
        query = "SELECT model_id, champion, frozen, id FROM quality_windows WHERE scores IS NOT NULL"
        for model, champion, frozen, id_ in self.state.execute(query):
            rows += [(model, version, f"window {id_}") for version in (champion, frozen)]
        for model, version, name in rows:
            if version is not None and versions[model, version]["sha256"] == "":
                raise Violation(
                    "prediction left", f"{name} has a prediction of version {version}, which an erasure purged."
                )

    def check_named(self) -> None:
        """No choice of examples to label names one that was removed, or that an erasure request restricts."""
        found = self.state.execute("SELECT model_id, result FROM analyses WHERE kind = 'labelling'").fetchall()
        if not found:
            return
        there = {key for key, row in self.state.pending.items() if not row.restricted}
        there |= {(row.model, row.id) for row in self.state.examples.values()}
        for model, result in found:
            named = {(model, row["id"]) for row in json.loads(result or "{}").get("rows", ())}
            if gone := named - there:
                raise Violation("removed example named", f"An analysis names {sorted(gone)}.")

    # Windows

    def check_windows(self) -> None:
        """No window counts a position that another one counted before, or that is not new."""
        for model, until in self.state.execute("SELECT id, scored_position FROM models"):
            if until < self.scored_until.get(model, 0):
                raise Violation("scored twice", f"Model {model}: from {self.scored_until[model]} back to {until}.")
            self.scored_until[model] = until
        for row in self.state.rows(WINDOWS):
            if (row["id"], row["created_at"]) in self.windows:
                continue
            positions, seen = positions_of(row), self.scored.setdefault(row["model_id"], set())
            if len(positions) != row["rows"]:
                raise Violation("scored twice", f"A window has {row['rows']} rows at {sorted(positions)}.")
            if twice := seen & positions:
                raise Violation("scored twice", f"{sorted(twice)} are in two windows of model {row['model_id']}.")
            if strange := positions - self.state.new_positions(row["model_id"], 0, max(positions)):
                raise Violation("scored twice", f"No examples arrived at {sorted(strange)}.")
            if max(positions) > self.scored_until[row["model_id"]]:
                raise Violation("scored twice", f"{sorted(positions)} will be scored again.")
            self.windows[row["id"], row["created_at"]] = positions
            seen |= positions

    # Erasures

    def check_purged(self, model: int, positions: set[int]) -> None:
        """No prediction for the erased examples is left when the receipt is written."""
        query = "SELECT position FROM recorded_predictions WHERE model_id = ?"
        left = positions.intersection(at for (at,) in self.state.execute(query, model))
        query = "SELECT id, created_at FROM quality_windows WHERE model_id = ? AND scores IS NOT NULL"
        for key in self.state.execute(query, model):
            left |= positions & self.windows[key]
        if left:
            raise Violation("receipt before purge", f"Predictions for {sorted(left)} are left.")

    def read_reports(self) -> dict[int, str]:
        rows = self.state.execute("SELECT model_id, report FROM drift_reports WHERE report IS NOT NULL")
        return {model: json.dumps(json.loads(text), sort_keys=True) for model, text in rows}

    def check_drift_reports(self, every: bool = False) -> None:
        """No new report was computed from erased examples; with `every`, no report at all."""
        before, self.reports = self.reports, self.read_reports()
        for model, key in self.reports.items():
            bad = self.world.drift_reports[key] & self.erased
            if bad and (every or before.get(model) != key):
                raise Violation("drift of erased data", f"The report of model {model} counts {sorted(bad)}.")


def positions_of(window: dict[str, Any]) -> set[int]:
    """Positions of a window; if an erasure deleted its rows, all those in its span."""
    if window["scores"] is None:
        return set(range(window["first_position"], window["last_position"] + 1))
    return set(load(window["scores"])["position"].tolist())
