"""Properties of the promotion gate and the quarantine."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tests.simulation.observed_state import ObservedState, StoredExample, Violation

if TYPE_CHECKING:
    from tests.simulation.callers import Callers

AUTOMATIC = ("policy", "erasure")
"""Who promotes without a person's decision."""


class QuarantineChecks:
    """No example leaves the quarantine without a decision, and none is used meanwhile."""

    def __init__(self, state: ObservedState, callers: Callers) -> None:
        self.state, self.callers = state, callers
        self.before: dict[tuple[int, int], StoredExample] = {}
        """The examples in quarantine after the previous transaction."""
        self.rejected: set[tuple[int, int]] = set()
        """Models and numbers of rejected versions that were not promoted yet."""

    def load(self) -> None:
        self.before = {key: row for key, row in self.state.examples.items() if row.quarantine is not None}

    def check_rejected(
        self, version: dict[str, Any], model: dict[str, Any], versions: dict[tuple[int, int], dict[str, Any]]
    ) -> None:
        """A rejected version learnt new examples, all of which are in quarantine."""
        [(kind,)] = self.state.execute("SELECT kind FROM jobs WHERE id = ?", version["job_id"])
        self.rejected.add((model["id"], version["number"]))
        name, tip = f"Version {version['number']} of model {model['id']}", versions.get((model["id"], model["tip"]))
        if kind == "retrain":
            return  # the champion has learnt the same examples
        new = self.state.new_positions(model["id"], tip["position"] if tip else 0, version["position"])
        if not new:
            raise Violation("gate delays a removal", f"{name} was rejected, although it learnt no new examples.")
        rows = [self.state.examples[key] for at in new if (key := (model["id"], at)) in self.state.examples]
        if left := [row.token for row in rows if row.removed is None]:
            raise Violation("not quarantined", f"{name} was rejected, but {sorted(left)} are in force.")

    def check_promotion(self, promotion: dict[str, Any], trained: set[int], before: Collection[int]) -> None:
        """Nothing but a person's decision promotes a version that was trained on examples in quarantine.

        An accepted version does not bring back examples that were removed meanwhile. `before` are the tokens that the
        previous champion was trained on.
        """
        key = promotion["model_id"], promotion["version"]
        if key in self.rejected:
            self.rejected.remove(key)
            [(head,)] = self.state.execute("SELECT head FROM models WHERE id = ?", key[0])
            if back := trained - self.state.in_force(key[0], head) - set(before):
                detail = f"Version {key[1]} was accepted, and was trained on {sorted(back)}, which are removed."
                raise Violation("removal undone", detail)
        bad = trained & self.state.quarantined(promotion["model_id"])
        if bad and promotion["by"] in AUTOMATIC:
            detail = f"Version {promotion['version']} was promoted, and was trained on {sorted(bad)}."
            raise Violation("promoted from quarantine", detail)

    def check_left(self, names: dict[int, str]) -> None:
        """Examples that have left the quarantine did so by a request, and are in force only if it accepted them."""
        in_force = {(row.model, row.token) for row in self.state.examples.values() if row.removed is None}
        for key, row in self.before.items():
            now = self.state.examples.get(key)
            if now is not None and now.quarantine == row.quarantine:
                continue
            reasons = self.reasons(row, names[row.model])
            back = (row.model, row.token) in in_force
            if not reasons:
                raise Violation("left quarantine", f"Nobody decided about example {row.token}: {row}.")
            if reasons == {"accept"} and not back:
                raise Violation("decision lost", f"Example {row.token} was accepted, but is not in force.")
            if back and "accept" not in reasons:
                raise Violation("decision lost", f"Example {row.token} is in force, but was not accepted: {reasons}.")
        self.load()

    def reasons(self, row: StoredExample, model: str) -> set[str]:
        """Kinds of the requests because of which an example may have left the quarantine."""
        person = self.callers.person_of(row.token)
        found = set()
        for request in self.callers.requests:
            about = request.model == model
            if request.kind in ("accept", "discard") and about and request.target == str(row.quarantine):
                found.add(request.kind)
            if request.kind == "remove" and about and row.id in request.ids:
                found.add(request.kind)
            if request.kind == "erase" and person is not None and request.subject == person:
                found.add(request.kind)
        return found
