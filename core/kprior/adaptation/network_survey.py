"""The survey that precedes the adaptation of a network; it reads a number of rows that does not grow with the data.

It contains unseen rows, the remaining classes, the judge's losses on the removed rows, and the budget. The worker makes
one survey and compares every candidate with its yardstick.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from core.kprior.certificate.network import Judgement, Yardstick
from core.kprior.data.examples import Data, Examples, keys_of
from core.kprior.data.random_samples import Draw, Minibatches, RowStream, Teach, draw_from, sample_rows
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.forgetting import class_counts, tilt_of
from core.kprior.objective.tasks import Task, TaskSet
from core.kprior.objective.transfer import new_predictor, new_regularizer
from core.kprior.passes.cost import Cost
from core.kprior.passes.moments import initial_weights_from
from core.kprior.passes.row_losses import audit_rows
from core.kprior.solvers import Training, Watch
from core.kprior.solvers.budgeted_adam import BATCH_SIZE, Cooling, descend
from core.kprior.state import State, count_after

VISITS_PER_ADDED_ROW, MIN_VISITS, MAX_EPOCHS = 3, 8_000, 8
"""The budget: visits per added row, the minimum, and the maximum number of epochs above the minimum."""
LEARNING_RATE = 3e-3
NEW_ARCHITECTURE_FACTOR = 2
"""Factor of the budget and of the learning rate if the architecture changes."""
MIN_ADDED_FRACTION = 0.25
"""The smallest fraction of added rows in a minibatch."""
SMALL_DATA_ROWS = 3_000
"""Fewer rows are trained on in smaller minibatches with twice the learning rate, because the budget allows few
steps."""
JUDGE_VISITS, JUDGE_ROUNDS = 4_000, 3
"""Row visits in one round of the judge's training, and the maximum number of rounds until it is accurate enough."""
UNSEEN_ROWS, MIN_HOLDOUT_ROWS, RESERVED_ROWS = 4_000, 20, 1_000
"""The number of unseen rows that metrics are computed on; the smallest holdout that is used; and the number of retained
rows that are set aside if the holdout is smaller."""
MAX_CHUNKS = 4
"""The maximum number of chunks of added and of removed rows; larger sets are sampled."""


@dataclass(frozen=True)
class Survey:
    """A network, what changes, and everything that the adaptation needs to know about the data."""

    state: State
    task_set: TaskSet
    predictor: Predictor
    """The new predictor."""
    regularizer: L2
    """The new regularizer."""
    removed_keys: Tensor
    """(r,) keys of all removed rows."""
    retained_count: int
    """Number of retained rows, without the added ones."""
    added_count: int
    budget: int
    """Maximum number of row gradients, including those of the survey."""
    rate: float
    added: Examples | None
    removed: Examples | None
    yardstick: Yardstick
    """What the result is compared with."""
    reserved: Tensor | None
    """Keys of retained rows that are set aside as unseen rows."""
    tilt: Tensor | None
    """Correction of the old network's outputs for the changed class frequencies."""
    lost: Tensor | None
    """(K,) which classes have no remaining row; None if there are no classes."""
    seed: int
    draw: Draw
    cost: Cost
    """The cost of the survey."""

    @property
    def count(self) -> int:
        """Number of rows that the new network represents."""
        return self.retained_count + self.added_count

    def initial_weights(self, predictor: Predictor) -> Tensor:
        """Initial weights of a network that is trained on the retained and the added rows."""
        some = self.draw(RowStream.chunk_size(self.predictor), self.seed)
        return initial_weights_from(predictor, [some] if self.added is None else [some, self.added])

    def minibatches(self, predictor: Predictor, order: int, teach: Teach | None = None) -> Minibatches:
        """Minibatches of retained and added rows, encoded by a predictor, in an order given by `order`. `teach` gives
        retained rows soft labels."""
        kept = RowStream(predictor, self.draw, self.seed, order, self.reserved, teach)
        fresh = None if self.added is None else RowStream(predictor, draw_from(self.added), self.seed, order)
        size = BATCH_SIZE if self.count >= SMALL_DATA_ROWS else BATCH_SIZE // 4
        return Minibatches(kept, self.retained_count, fresh, self.added_count, size, MIN_ADDED_FRACTION)


def budget_of(training: Training, count: int, added: int, body: bool) -> int:
    """Maximum number of row gradients; `body` says whether the architecture is new."""
    visits = min(training.budget + VISITS_PER_ADDED_ROW * added, max(MIN_VISITS, MAX_EPOCHS * count))
    return visits * (NEW_ARCHITECTURE_FACTOR if body else 1)


def survey_change(
    state: State,
    tasks: Sequence[Task],
    draw: Draw,
    *,
    training: Training | None = None,
    holdout: Data = (),
    watch: Watch | None = None,
) -> Survey:
    """Draw and measure what the adaptation of a network needs: unseen rows, remaining classes, the judge.

    The state is the network as it is, or the linear model that becomes a network. Without a holdout, some retained rows
    are set aside. `watch` is called after each step of the judge's training; True ends it. Raises ValueError if no
    examples are left, or tasks contradict the state or each other.
    """
    training, task_set, cost, old = training or Training(), TaskSet.of(tasks), Cost(), state.predictor
    draw = lru_cache(maxsize=1)(draw)  # the first chunk, the judge and the network start with the same rows
    removed_keys, added_keys = keys_of(task_set.removed), keys_of(task_set.added)
    count_after(state, removed_keys, added_keys)
    retained, new = state.count - len(removed_keys), len(added_keys)
    predictor = old if task_set.architecture is None else new_predictor(old, task_set.architecture, training.seed)
    body, size, seed = predictor is not old, RowStream.chunk_size(predictor), 1_000_003 * (training.seed + 1)
    with cost.timed():
        added, removed = (sample_rows(some, MAX_CHUNKS * size, seed) for some in (task_set.added, task_set.removed))
        for rows in (added, removed):
            if rows is not None:
                predictor.check(rows)
        first = draw(size, seed)
        kept, came = class_counts(old, first), class_counts(old, added)
        unseen = sample_rows([holdout], UNSEEN_ROWS, seed)
        if unseen is not None and kept is not None and came is not None:
            # Unseen rows of a class without any remaining row must not penalise forgetting it.
            unseen = unseen.take((kept + came > 0)[classes_of(unseen.y).cpu()])
        reserved, has_holdout = None, unseen is not None and len(unseen) >= MIN_HOLDOUT_ROWS
        if unseen is None or not has_holdout:
            unseen = first.take(torch.arange(min(RESERVED_ROWS, len(first) // 5)))
            reserved = unseen.key.cpu()
        some = first.take(torch.arange(min(RESERVED_ROWS, len(first))))
        before, kept_before = audit_rows(old, state.w, unseen).losses, audit_rows(old, state.w, some).losses
        cost.forward_passes += len(unseen) + len(some)
        if kept is not None and len(first):
            kept = kept * (retained / len(first))
        survey = Survey(
            state,
            task_set,
            predictor,
            new_regularizer(state, task_set, predictor),
            removed_keys,
            retained,
            new,
            budget_of(training, retained + new, new, body),
            LEARNING_RATE * (NEW_ARCHITECTURE_FACTOR if body else 1) * (1 if retained + new >= SMALL_DATA_ROWS else 2),
            added,
            removed,
            Yardstick(
                unseen,
                before,
                some,
                kept_before,
                removed,
                None,
                has_holdout,
                body or task_set.regularizer is not None,
                max(1.0, state.count / (retained + new)),
            ),
            reserved,
            tilt_of(old.family, kept, class_counts(old, removed)),
            None if kept is None or came is None else kept + came == 0,
            seed,
            draw,
            cost,
        )
        return add_judgement(survey, training, watch) if removed is not None and len(unseen) else survey


def add_judgement(survey: Survey, training: Training, watch: Watch | None) -> Survey:
    """The survey with the losses of a judge: a network that is trained briefly on retained and added rows only."""
    judge = Predictor(survey.predictor.spec, training.seed + 1, survey.predictor.device)
    cost, yardstick = survey.cost, survey.yardstick
    judge.inherit(survey.predictor)
    rows = survey.minibatches(judge, order=1)

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        z, y, weight, _ = rows.take()
        f = judge.outputs_of_encoded(w, z, training=True)
        return (weight * judge.family.loss(y, f)).mean(), len(z)

    assert survey.removed is not None
    steps, w = max(1, min(JUDGE_VISITS, survey.budget // 4) // len(rows)), survey.initial_weights(judge)
    unseen, before = yardstick.unseen, yardstick.before if yardstick.holdout else None
    rate = training.learning_rate * (
        1 if survey.count >= SMALL_DATA_ROWS else 2
    )  # as for training from scratch, but with fewer steps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)  # dropout draws from the global generator
        for _ in range(JUDGE_ROUNDS):
            w = descend(w, step_loss, steps, cost, cooling=Cooling(rate, 0.5), watch=watch).w
            cost.forward_passes += len(unseen) + len(survey.removed)
            judgement = Judgement.of(judge, w, survey.removed, unseen, before, survey.lost)
            if judgement.is_fit(yardstick.before):
                break
    return replace(survey, yardstick=replace(yardstick, judgement=judgement))
