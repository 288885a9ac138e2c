"""The arguments of an adaptation, in the form that every implementation takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from core.kprior.adaptation.network_survey import Survey
from core.kprior.adaptation.result import Result
from core.kprior.data.examples import Data, Examples
from core.kprior.data.random_samples import Draw
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.spec import is_network
from core.kprior.objective.tasks import Task, TaskSet
from core.kprior.objective.transfer import new_predictor
from core.kprior.solvers import Progress, Training
from core.kprior.state import State


@dataclass(frozen=True)
class AdaptationRequest:
    """A model, what changes, and the options of `adapt`, after changes of the schema were applied."""

    state: State
    memory: Examples
    tasks: Sequence[Task]
    training: Training
    policy: MemoryPolicy
    holdout: Data
    draw: Draw | Survey | None
    progress: Progress | None

    @cached_property
    def task_set(self) -> TaskSet:
        """The tasks, sorted by kind."""
        return TaskSet.of(self.tasks)

    @property
    def is_for_network(self) -> bool:
        """Whether the new model is a network."""
        architecture = self.task_set.architecture
        return not self.state.predictor.linear if architecture is None else is_network(architecture)

    @property
    def keeps_features(self) -> bool:
        """Whether the features stay the same."""
        architecture, old = self.task_set.architecture, self.state.predictor
        return architecture is None or new_predictor(old, architecture, 0) is old

    @property
    def keeps_sums(self) -> bool:
        """Whether the sums at the anchor are exact and remain valid."""
        return self.state.anchor.exact and self.keeps_features


Adapter = Callable[[AdaptationRequest], Result]
