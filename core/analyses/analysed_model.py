"""The model that an analysis is about: its state at one position, its examples, and names for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from torch import Tensor

from core.database import Database
from core.kprior import Data, Examples, MemoryPolicy, State, Training
from core.kprior.data.examples import chunks_of
from core.kprior.data.label_sets import to_matrix
from core.kprior.model.spec import Spec, values_of
from core.ledger import bulk
from core.ledger.queries import batched
from core.models.policy import Policy
from core.quality.clusters import cluster, number_repeated
from core.quality.evaluation import Evaluation
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.tables.ledger import Example
from core.tables.versions import Version

Progress = Callable[[float, str], None]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class AnalysedModel:
    """A model at the head of its ledger."""

    database: Database
    model_id: int
    spec: Spec
    at: int
    """The position."""
    policy: Policy
    training: Training
    memory_policy: MemoryPolicy
    tip: Version
    state: State
    """The model at the position: the tip, adapted to what has changed since."""
    memory: Examples
    holdout: Data
    """The sample of the holdout that versions are evaluated on."""
    subjects: Callable[[], dict[int, bytes]]
    """The subjects of the holdout's rows, by position."""
    load: Callable[[Version], State | None]
    """The state of another version; None if its file is gone."""
    is_tip: bool = True
    """Whether nothing has changed since the tip, so that the state is the tip's."""
    in_force: Data | None = None
    """All training examples; None where no pass may be made."""
    progress: Progress = lambda fraction, phrase: None

    @property
    def examples(self) -> Data:
        """All training examples."""
        assert self.in_force is not None
        return self.in_force

    @property
    def options(self) -> MetricOptions:
        return MetricOptions.of(self.policy)

    @property
    def is_estimate(self) -> bool:
        """Whether analyses adapt the last layer of a network only."""
        return not self.state.predictor.linear

    @cached_property
    def holdout_rows(self) -> list[Examples]:
        return list(chunks_of([self.holdout]))

    @cached_property
    def holdout_positions(self) -> Positions:
        """(n,) positions of the holdout's rows."""
        keys = [chunk.key.numpy() for chunk in self.holdout_rows]
        return np.concatenate(keys) if keys else np.zeros(0, np.int64)

    def clusters(self, positions: Positions, added: Mapping[int, bytes] | None = None) -> NDArray[np.int64] | None:
        """Numbers 0, 1, 2, ... of the subjects of holdout rows; None if no row has one.

        `added` are the subjects of rows that a preview adds, by position.
        """
        if not self.known_subjects and not added:
            return None
        known = self.holdout_positions
        place = np.searchsorted(known, positions).clip(max=max(0, len(known) - 1))
        if len(known) and bool((known[place] == positions).all()):
            chosen: NDArray[np.int64] = self._clusters[place]
            return chosen
        return np.unique(cluster(positions, {**self.known_subjects, **(added or {})}), return_inverse=True)[1]

    def training_clusters(self, positions: Positions) -> NDArray[np.int64] | None:
        """Numbers of the subjects of training rows, for standard errors; None if no subject has several."""
        found: dict[int, bytes] = {}
        with self.database.read() as session:
            for some in batched(positions.tolist()):
                found.update(bulk.subjects_at(session, self.model_id, some))
        return number_repeated(cluster(positions, found)) if found else None

    @cached_property
    def known_subjects(self) -> dict[int, bytes]:
        """The subjects of the holdout's rows, by position."""
        self.holdout_rows  # noqa: B018 - subjects are known once the rows were read
        return self.subjects()

    @cached_property
    def _clusters(self) -> NDArray[np.int64]:
        """(n,) numbers of the subjects of all holdout rows."""
        return np.unique(cluster(self.holdout_positions, self.known_subjects), return_inverse=True)[1]

    def name_rows(self, positions: Collection[int]) -> dict[int, str]:
        """The ids of examples by position."""
        found: dict[int, str] = {}
        with self.database.read() as session:
            for some in batched(sorted(positions)):
                query = select(Example.position, Example.id).where(Example.model_id == self.model_id)
                found.update((p, id) for p, id in session.execute(query.where(Example.position.in_(some))))
        return found

    def label_of(self, code: float) -> Any:
        """The value of a target as callers write it."""
        return label_of(self.spec, code)

    def describe_mean(self, mean: Sequence[float]) -> Any:
        """A predicted mean: a number, or the probability of each class."""
        if self.spec["target"]["kind"] not in ("classes", "labels"):
            return float(mean[0])
        return {str(value): float(p) for value, p in zip(values_of(self.spec["target"]), mean, strict=True)}

    def score(self, f: Tensor, y: Tensor, weight: Tensor | None = None, state: State | None = None) -> Evaluation:
        """The evaluation of outputs (n, K) for targets (n, K)."""
        state = state or self.state
        found = Evaluation(state, self.options)
        weight = torch.ones(len(f), dtype=torch.float64) if weight is None else weight
        found.add_predictions(f, state.predictor.family.mean(f), y.to(f), weight.double().cpu())
        return found


def label_of(spec: Spec, code: float) -> Any:
    """The value of a target as callers write it.

    >>> label_of({"target": {"kind": "classes", "values": ["cat", "dog"]}}, 1.0)
    'dog'
    """
    values = values_of(spec["target"])
    if spec["target"]["kind"] == "labels":
        return [
            value for value, there in zip(values, to_matrix(np.array([code]), len(values))[0], strict=True) if there
        ]
    return values[int(code)] if values and code == int(code) else code


def summarize(rows: ScoredRows, values: dict[str, float]) -> dict[str, float]:
    """Metrics without those that are not numbers, for JSON."""
    return {name: value for name, value in values.items() if np.isfinite(value)} | {"rows": len(rows)}
