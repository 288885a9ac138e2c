"""Stands in for the engine: a state is the list of the examples that it was trained on.

The token of an example is its first feature, a number that no other example has. An example is bad if its target is 1:
the gate rejects a version that learnt bad examples which its champion does not have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from core import clock
from core.kprior import Cost, Examples
from core.ledger import passes
from core.quality.gate import not_compared
from core.quality.queries import GateInputs
from core.tables.models import Model
from core.tables.versions import VersionKind
from core.versions.history import VersionDraft
from core.versions.store import StoredFile
from tests.simulation.world import World
from worker.reading import Reading
from worker.versions.snapshot import ModelSnapshot, Unadaptable
from worker.versions.test_then_train import NewExamplesScored

MAX_SECONDS = 8.0
"""The longest computation: with the time between the other steps, some jobs take longer than their leases."""


class Keys(list[int]):
    def tolist(self) -> list[int]:
        return list(self)


class StubMemory:
    def __init__(self, positions: Iterable[int]) -> None:
        self.key = Keys(positions)

    def __len__(self) -> int:
        return len(self.key)


class StubState:
    """The examples that a version was trained on, by position."""

    def __init__(self, tokens: dict[int, int], bad: set[int]) -> None:
        self.tokens, self.bad = tokens, bad
        self.count = len(tokens)
        self.memory = StubMemory(position for position in tokens if position % 2)

    def to_bytes(self) -> bytes:
        return json.dumps({"tokens": self.tokens, "bad": sorted(self.bad)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, _device: object = None) -> StubState:
        body = json.loads(data)
        return cls({int(position): token for position, token in body["tokens"].items()}, set(body["bad"]))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.tokens.values())).encode()).hexdigest()


def state_of(chunks: Iterable[Examples]) -> StubState:
    tokens, bad = {}, set()
    for chunk in chunks:
        for position, x, y in zip(chunk.key.tolist(), chunk.x[:, 0].tolist(), chunk.y.flatten().tolist(), strict=True):
            tokens[position] = int(x)
            if y == 1:
                bad.add(int(x))
    return StubState(tokens, bad)


class StubEngine:
    """The functions of the worker that compute."""

    def __init__(self, world: World) -> None:
        self.world = world

    def compute(self) -> None:
        clock.sleep(self.world.random.random() * MAX_SECONDS)

    def next_version(self, attempt: Any, snapshot: ModelSnapshot) -> VersionDraft:
        if snapshot.tip is None:
            return self.train_draft(attempt, snapshot, attempt.progress)
        try:
            return self.adapt_tip(attempt, snapshot)
        except Unadaptable:
            return self.train_draft(attempt, snapshot, attempt.progress)

    def adapt_tip(self, attempt: Any, snapshot: ModelSnapshot) -> VersionDraft:
        """Reads as `worker.versions.changes.changes_since` does, with the same checks."""
        tip = snapshot.tip
        assert tip is not None
        attempt.progress(0.1, "Reading the changes")
        parent = snapshot.load(tip)
        place = (snapshot.context.database, snapshot.model_id, snapshot.spec, tip.position, snapshot.at)
        added, removed = state_of(passes.read_added(*place)), state_of(passes.read_removed(*place))
        if parent.count + added.count - removed.count != snapshot.count:
            raise Unadaptable("examples of the previous version were purged")
        tokens = {at: token for at, token in parent.tokens.items() if at not in removed.tokens} | added.tokens
        state = StubState(tokens, (parent.bad | added.bad) & set(tokens.values()))
        if snapshot.erasing:
            self.read(attempt, snapshot)
        self.compute()
        attempt.progress(0.5, "Adapting")
        return self.draft(snapshot, state, VersionKind.ADAPTED)

    def read(self, attempt: Any, snapshot: ModelSnapshot) -> StubState:
        reading = Reading(attempt, snapshot.in_force(), attempt.progress, "Reading")
        reading.require_nobody_erased()
        return state_of(reading)

    def train_draft(self, attempt: Any, snapshot: ModelSnapshot, _progress: Any, **_options: Any) -> VersionDraft:
        state = self.read(attempt, snapshot)
        self.compute()
        attempt.progress(0.5, "Training")
        return self.draft(snapshot, state, VersionKind.TRAINED)

    def draft(self, snapshot: ModelSnapshot, state: StubState, kind: VersionKind) -> VersionDraft:
        parent = snapshot.tip if kind is VersionKind.ADAPTED else None
        return VersionDraft(
            state=state,
            kind=kind,
            method="kprior" if parent else "retrain",
            position=snapshot.at,
            dataset_digest=state.digest,
            cost=Cost(),
            metrics={},
            parent=parent.number if parent else None,
            since=parent.position if parent else 0,
            erasing=snapshot.erasing,
        )

    def judge_draft(self, snapshot: ModelSnapshot, draft: VersionDraft, retrained: bool = False) -> VersionDraft:
        """Reads as `worker.versions.gate.judge_draft` does; only the comparison itself is another."""
        policy = snapshot.policy.gate
        with snapshot.context.database.read() as session:
            inputs = GateInputs.read(session, session.get_one(Model, snapshot.model_id), draft)
        if inputs.champion is None:
            return replace(draft, gate=not_compared("first_version", policy))
        if not (inputs.has_additions or retrained):
            policy = policy.model_copy(update={"action": "warn"})
        gate = not_compared("version_purged", policy)
        champion = snapshot.load_or_none(inputs.champion)
        if champion is not None:
            gate["passed"] = draft.state.bad <= champion.bad
        return replace(draft, gate=gate)

    def score_new_examples(self, snapshot: ModelSnapshot) -> NewExamplesScored:
        """Takes note of the position only."""
        with snapshot.context.database.read() as session:
            since = session.get_one(Model, snapshot.model_id).scored_position
        return NewExamplesScored(since, snapshot.at)

    def check_stored(self, snapshot: ModelSnapshot, state: StubState, stored: StoredFile) -> None:
        assert StubState.from_bytes(snapshot.context.store.get(stored.file, stored.sha256)).tokens == state.tokens

    def compare_with(self, *_arguments: Any) -> dict[str, Any]:
        """Some adapted versions are outside tolerance, so that the retrained ones take over."""
        far = self.world.random.random() < 0.5
        return {"disagreement": float(far), "weight_distance": None, "retrain_is_worse": None, "speedup": 1.0}
