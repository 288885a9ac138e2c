"""A model as it was when an attempt started, and access to its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session
from torch import Tensor

from core.errors import NotFound, Unavailable
from core.kprior import CertifiedRemoval, Data, Examples, MemoryPolicy, State, StateError, Training
from core.kprior.data.schema_conversion import same_schema
from core.kprior.model.spec import Spec
from core.kprior.solvers import Watch
from core.ledger import passes
from core.ledger.holdout_sample import SampledRows, sample_holdout, sample_training
from core.ledger.spec_history import spec_at
from core.ledger.untrained_classes import has_free_biases, untrained_classes
from core.models.engine_options import memory_policy, removal_promise, solver_options
from core.models.policy import Policy, policy_of
from core.models.training_options import training_of
from core.quality.clusters import cluster, number_repeated
from core.quality.evaluation import Evaluation, evaluate
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.quality.scoring import score
from core.tables.models import Model
from core.tables.versions import FIRST, Version
from core.versions.erased_examples import made_after_request, open_parts
from core.versions.queries import tip_of
from worker.context import Context
from worker.job_attempt import Progress


class Unadaptable(Exception):
    """A version cannot be adapted, for the reason in the message; the model is retrained instead."""


@dataclass(frozen=True)
class ModelSnapshot:
    """A model at a position."""

    context: Context
    model_id: int
    spec: Spec
    """The spec as of `at`."""
    at: int
    """The position of the version to create."""
    removals_position: int
    """The position up to which removed examples are left out: `at`, or a later one if a version is rebuilt."""
    policy: Policy
    memory: MemoryPolicy
    training: Training
    removal: CertifiedRemoval | None
    """The guarantee of certified removal, if the model was created with one."""
    count: int
    """Number of training examples."""
    tip: Version | None
    is_covered: bool
    """Whether the tip needs no adaptation: nothing has changed since, or all changes cancel out."""
    erasing: bool
    """Whether people are being erased; a certificate is then required, whatever the policy says."""
    unproven: bool
    """Whether the tip was created before their requests, so that it is not verified that it has forgotten them."""

    @classmethod
    def of(
        cls, context: Context, session: Session, model: Model, at: int, removals_position: int | None = None
    ) -> ModelSnapshot:
        policy, training = policy_of(model), training_of(model)
        tip, spec = tip_of(session, model), spec_at(session, model.id, model.spec, at)
        parts = [part for part, _ in open_parts(session, model.id)]
        return cls(
            context=context,
            model_id=model.id,
            spec=spec,
            at=at,
            removals_position=at if removals_position is None else removals_position,
            policy=policy,
            memory=memory_policy(policy, spec),
            training=solver_options(training),
            removal=removal_promise(training),
            count=model.train_count,
            tip=tip,
            is_covered=tip is not None and max(tip.position, model.covered_position) >= at,
            erasing=bool(parts),
            unproven=tip is not None and not all(made_after_request(part, tip) for part in parts),
        )

    @property
    def secret(self) -> bytes:
        return self.context.settings.secret

    @cached_property
    def imported(self) -> bool:
        """Whether the model began with imported weights, whose columns may be unscaled."""
        with self.context.database.read() as session:
            first = session.get(Version, (self.model_id, FIRST))
        return first is not None and first.method == "imported"

    def in_force(self) -> passes.Pass:
        """All training examples."""
        where = self.context.database, self.model_id, self.spec, self.at
        return passes.read_in_force(*where, removals_position=self.removals_position)

    @cached_property
    def holdout(self) -> Data:
        """The examples for evaluation: a sample of the holdout, the same for all versions."""
        return passes.load_if_small(self._sampled)

    @cached_property
    def _sampled(self) -> SampledRows:
        max_rows = self.policy.evaluation.rows
        where = self.context.database, self.model_id, self.spec, self.at
        return sample_holdout(*where, max_rows, self.removals_position)

    @property
    def holdout_positions(self) -> NDArray[np.int64]:
        """(n,) the positions of the holdout's rows, ascending."""
        return self._outline[0]

    @property
    def holdout_subjects(self) -> dict[int, bytes]:
        """The subjects of the holdout's rows by position, where they have one."""
        return self._outline[1]

    @cached_property
    def holdout_clusters(self) -> NDArray[np.int64] | None:
        """(n,) numbers of the subjects of the holdout's rows, for standard errors; None if no row has a subject."""
        return cluster(self.holdout_positions, self.holdout_subjects) if self.holdout_subjects else None

    @cached_property
    def _repeated_subjects(self) -> NDArray[np.int64] | None:
        return number_repeated(self.holdout_clusters)

    @cached_property
    def _outline(self) -> tuple[NDArray[np.int64], dict[int, bytes]]:
        if self.holdout is self._sampled:  # too large for memory
            return self._sampled.outline()
        keys = [chunk.key.numpy() for chunk in self.holdout]
        return np.concatenate(keys) if keys else np.zeros(0, np.int64), self._sampled.subjects

    def evaluate(self, states: Sequence[State], holdout: Data) -> list[Evaluation]:
        """Evaluate versions on the holdout, in one pass. Their predictions are kept for the gate."""
        found = evaluate(states, holdout, MetricOptions.of(self.policy))
        for evaluation in found:
            evaluation.clusters = self._repeated_subjects
        self._predictions.extend((evaluation.state, evaluation.rows) for evaluation in found)
        return found

    def predict_holdout(self, state: State) -> ScoredRows:
        """What a version predicts for the rows of the holdout, in order; computed once."""
        for known, rows in self._predictions:
            if known is state:
                return rows
        _, (rows,) = score([state], self.holdout, MetricOptions.of(self.policy))
        self._predictions.append((state, rows))
        return rows

    @cached_property
    def _predictions(self) -> list[tuple[State, ScoredRows]]:
        return []

    @property
    def training_sample(self) -> Data:
        """A sample of the training examples, as large as the sample of the holdout."""
        return sample_training(self.context.database, self.model_id, self.spec, self.at, self.policy.evaluation.rows)

    def watch(self, progress: Progress) -> Watch:
        """A callback that reports the progress of a network's training, also within epochs; raising there stops it."""
        total = max(1, self.count) * self.training.max_epochs

        def watch(backward_passes: int, _w: Tensor) -> bool:
            progress(min(1.0, backward_passes / total), f"Training: {backward_passes} gradients so far")
            return False

        return watch

    def load(self, version: Version) -> State:
        """A version's state, on the device of this process; read once, and not to be changed.

        Raises Unadaptable if its file is missing or damaged.
        """
        if version.number not in self._states:
            self._states[version.number] = self._read(version)
        return self._states[version.number]

    @cached_property
    def _states(self) -> dict[int, State]:
        return {}

    def _read(self, version: Version) -> State:
        try:
            return State.from_bytes(self.context.store.get(version.file, version.sha256), self.context.device)
        except (NotFound, StateError) as error:
            raise Unadaptable(f"the file of version {version.number} cannot be read") from error
        except Unavailable as error:
            if error.code != "version_damaged":
                raise
            raise Unadaptable(f"the file of version {version.number} is damaged") from error

    def load_or_none(self, version: Version | None) -> State | None:
        """A version's state; None without a version, or if its file is missing or damaged."""
        try:
            return self.load(version) if version else None
        except Unadaptable:
            return None

    def load_memory(self, state: State, at: int) -> Examples:
        """The examples that a state's memory refers to, as they were at its position."""
        with self.context.database.read() as session:
            found = passes.read_positions(session, self.model_id, state.spec, state.memory.key.tolist(), at)
        if len(found) < len(state.memory):
            raise Unadaptable("examples in the memory of the previous version were purged")
        return found

    @cached_property
    def lacks_optimum(self) -> bool:
        """Whether a class has no training examples and its bias no penalty: no bound is finite then."""
        if not has_free_biases(self.spec):
            return False
        with self.context.database.read() as session:
            return bool(untrained_classes(session, self.model_id, self.spec, self.at))

    def has_schema_of(self, state: State) -> bool:
        """Whether a state has the same input and target, so that it can be evaluated on the model's examples."""
        return same_schema(state.spec, self.spec)


def count_rows(data: Data) -> int:
    return sum(len(chunk) for chunk in data)
