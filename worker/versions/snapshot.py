"""A model as it was when an attempt started, and access to its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session
from torch import Tensor

from core.errors import NotFound, Unavailable
from core.kprior import CertifiedRemoval, Data, Examples, MemoryPolicy, State, StateError, Training
from core.kprior.data.conversion import same_schema
from core.kprior.model.spec import Spec
from core.kprior.solvers import Watch
from core.ledger import passes
from core.ledger.holdout_sample import sample_holdout, sample_training
from core.ledger.specs import spec_at
from core.models.engine_options import memory_policy, removal_promise, solver_options
from core.models.policy import Policy, policy_of
from core.models.training import training_of
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.erased_examples import made_after_request, open_parts
from core.versions.queries import tip_of
from worker.attempt import Progress
from worker.context import Context


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
    def of(cls, context: Context, session: Session, model: Model, at: int) -> ModelSnapshot:
        policy, training = policy_of(model), training_of(model)
        tip = tip_of(session, model)
        parts = [part for part, _ in open_parts(session, model.id)]
        return cls(
            context=context,
            model_id=model.id,
            spec=spec_at(session, model.id, model.spec, at),
            at=at,
            policy=policy,
            memory=memory_policy(policy),
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

    def in_force(self) -> passes.Pass:
        """All training examples."""
        return passes.read_in_force(self.context.database, self.model_id, self.spec, self.at)

    @cached_property
    def holdout(self) -> Data:
        """The examples for evaluation: a sample of the holdout, the same for all versions."""
        max_rows = self.policy.evaluation.rows
        return passes.load_if_small(sample_holdout(self.context.database, self.model_id, self.spec, self.at, max_rows))

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
        """A version's state, on the device of this process. Raises Unadaptable if its file is missing or damaged."""
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

    def has_schema_of(self, state: State) -> bool:
        """Whether a state has the same input and target, so that it can be evaluated on the model's examples."""
        return same_schema(state.spec, self.spec)


def count_rows(data: Data) -> int:
    return sum(len(chunk) for chunk in data)
