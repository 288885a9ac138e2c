"""The costs of the methods for a network's next version, predicted from those of its earlier versions.

Costs are gradients of single examples. Where there are few of them, the number of steps matters more: a training takes
few steps with large minibatches, and an adaptation many with small ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from core.kprior import Data, Training
from core.kprior.adaptation.network_survey import JUDGE_VISITS, SMALL_DATA_ROWS, Survey, budget_of
from core.kprior.solvers.budgeted_adam import BATCH_SIZE, warm_visits
from core.ledger.spec_history import spec_at
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.queries import MAX_NUMBER, page_versions
from worker.versions.snapshot import ModelSnapshot, count_rows

DEFAULT_EPOCHS = 30
"""Of a training, until one was measured."""
DEFAULT_BUDGET_FRACTION = 0.6
"""What an adaptation takes of its budget, until some were measured: most end after the first stage."""
HISTORY_VERSIONS = 20
"""The newest versions, whose measured costs predict the next ones."""
STEP_ROWS, ADAPTATION_STEP_ROWS = 128, 256
"""What a step costs besides its gradients, in gradients: about so many for a small network on a CPU. An adaptation also
asks the old network for soft labels."""


@dataclass(frozen=True)
class Trial:
    """A method that was tried. Costs are gradients of single examples."""

    method: str
    predicted: int
    """The predicted cost."""
    visits: int
    """The actual cost."""
    count: int
    """Training examples of the version."""
    budget: int
    """The most that an adaptation was allowed to cost."""
    objection: str = ""
    """Why the result was rejected; empty if it was not."""


@dataclass(frozen=True)
class CostHistory:
    """What the model's last versions with the same architecture took."""

    fractions: Sequence[float]
    """Of their budgets, by adaptations, newest first."""
    epochs: Sequence[float]
    """Of trainings from scratch, newest first."""

    @classmethod
    def read(cls, snapshot: ModelSnapshot) -> CostHistory:
        with snapshot.context.database.read() as session:
            spec, body = session.get_one(Model, snapshot.model_id).spec, snapshot.spec["architecture"]
            versions = [
                version
                for version in page_versions(session, snapshot.model_id, MAX_NUMBER, HISTORY_VERSIONS)
                if version.state is not VersionState.PURGED  # its costs are deleted
                and spec_at(session, snapshot.model_id, spec, version.position)["architecture"] == body
            ]
        tried = [Trial(**found) for v in versions for found in (v.evaluation or {}).get("trials", [])]
        fractions = [c.visits / max(1, c.budget) for c in tried if c.method == "kprior" and c.visits]
        epochs = [c.visits / max(1, c.count) for c in tried if c.method == "retrain"]
        # a training that was the only method tried is recorded in the version alone
        epochs += [epochs_of(version) for version in versions if version.method == "retrain"]
        return cls(fractions, epochs)

    def predict(self, training: Training, survey: Survey, unchanged: bool) -> dict[str, int]:
        """Predict how many gradients of single examples each method takes.

        `unchanged`: nothing has changed since the tip, so an adaptation only measures it. The cost of a warm start is
        known beforehand.
        """
        adaptation = 0.0 if unchanged else min(1.0, self.budget_fraction)
        return {
            "kprior": round(adaptation * survey.budget),
            "warm": warm_visits(survey.count) + survey.count,
            "retrain": round(
                (self.epochs[0] if self.epochs else min(DEFAULT_EPOCHS, training.max_epochs)) * survey.count
            ),
        }

    @property
    def budget_fraction(self) -> float:
        """What an adaptation takes of its budget."""
        return median(self.fractions[:5]) if self.fractions else DEFAULT_BUDGET_FRACTION

    def favours_retrain(self, training: Training, before: int, added: Data, removed: Data) -> bool:
        """Whether a retrain is cheaper than an adaptation with its survey, as it is with a few hundred examples.

        False unless a training was measured. `before` is the number of examples of the previous version.
        """
        new, gone = count_rows(added), count_rows(removed)
        count = before + new - gone
        if not self.epochs or count <= 0 or not (new or gone):
            return False
        size = min(count, training.batch_size or count)
        retrain = self.epochs[0] * math.ceil(count / size) * (STEP_ROWS + size)
        budget = budget_of(training, count, new, body=False)
        rows = BATCH_SIZE if count >= SMALL_DATA_ROWS else BATCH_SIZE // 4
        judge = min(JUDGE_VISITS, budget // 4) if gone else 0
        visits = max(0.0, min(1.0, self.budget_fraction) * budget - judge)
        return retrain < judge / rows * (STEP_ROWS + rows) + visits / rows * (ADAPTATION_STEP_ROWS + rows)


def epochs_of(version: Version) -> float:
    """Epochs of a version's training."""
    memory = version.memory
    return float(version.cost["backward_passes"] * memory["fraction"] / max(1, memory["size"]))
