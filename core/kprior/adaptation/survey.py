"""What an adaptation of a network needs to know before it begins: little of the data, and none of it grows with it.

Rows that nobody has seen, the classes that are left, what a judge says of the removed rows, and the budget. The worker
makes a survey once and holds every candidate against its yardstick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from core.kprior.certificate.network import Judgement, Yardstick
from core.kprior.cost import Cost
from core.kprior.data.drawing import Draw, Minibatches, RowStream, draw_from, sample_rows
from core.kprior.data.examples import Data, Examples, keys_of
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.forgetting import class_counts, tilt_of
from core.kprior.objective.tasks import Change, Task
from core.kprior.objective.transfer import new_predictor, new_regularizer
from core.kprior.passes.moments import initial_weights_from
from core.kprior.passes.row_losses import audit_rows
from core.kprior.solvers import Training, Watch
from core.kprior.solvers.budget import BATCH_SIZE, descend
from core.kprior.state import State, count_after

VISITS_PER_ADDED_ROW, MIN_VISITS, MAX_EPOCHS = 3, 8_000, 8
"""The budget: so many visits for each added row, so many at least, and no more than so many epochs beyond that."""
LEARNING_RATE = 3e-3
NEW_ARCHITECTURE_FACTOR = 2
"""By which budget and learning rate are multiplied when the architecture changes."""
MIN_ADDED_FRACTION = 0.25
"""Of a minibatch."""
SMALL_DATA_ROWS = 3_000
"""Fewer rows are trained on in smaller minibatches with twice the rate: progress takes steps, and the budget has
few."""
JUDGE_VISITS, JUDGE_ROUNDS = 4_000, 3
"""Visits of one round of the judge's training, and rounds at most while it knows little."""
UNSEEN_ROWS, MIN_HOLDOUT_ROWS, RESERVED_ROWS = 4_000, 20, 1_000
"""Unseen rows that figures are measured on; a holdout with fewer than the second is ignored, and retained rows are set
aside instead."""
MAX_CHUNKS = 4
"""Chunks of added and of removed rows that are held; of more, a random sample is taken."""


@dataclass(frozen=True)
class Survey:
    """A network, what is to change, and all that the work needs to know of the data."""

    state: State
    change: Change
    predictor: Predictor
    """The new one."""
    regularizer: L2
    """The new one."""
    removed_keys: Tensor
    """(r,) of all removed rows."""
    retained_count: int
    """Rows that stay, without the added ones."""
    added_count: int
    budget: int
    """Rows that may be differentiated, the survey's own included."""
    rate: float
    added: Examples | None
    removed: Examples | None
    yardstick: Yardstick
    """What the result is held against."""
    reserved: Tensor | None
    """Keys of retained rows that are set aside."""
    tilt: Tensor | None
    """What the old network's outputs lack to speak of the classes as they are now."""
    seed: int
    draw: Draw
    cost: Cost
    """What the survey itself took."""

    @property
    def count(self) -> int:
        """Rows that the new network stands for."""
        return self.retained_count + self.added_count

    def initial_weights(self, predictor: Predictor) -> Tensor:
        """The weights with which a network begins to learn the rows that the new one stands for."""
        some = self.draw(RowStream.chunk_size(self.predictor), self.seed)
        return initial_weights_from(predictor, [some] if self.added is None else [some, self.added])

    def minibatches(self, predictor: Predictor, order: int) -> Minibatches:
        """The rows that the new network stands for, as a predictor reads them, in an order of their own."""
        kept = RowStream(predictor, self.draw, self.seed, order, self.reserved)
        fresh = None if self.added is None else RowStream(predictor, draw_from(self.added), self.seed, order)
        size = BATCH_SIZE if self.count >= SMALL_DATA_ROWS else BATCH_SIZE // 4
        return Minibatches(kept, self.retained_count, fresh, self.added_count, size, MIN_ADDED_FRACTION)


def budget_of(training: Training, count: int, added: int, body: bool) -> int:
    """Rows that may be differentiated; `body` says whether the architecture is new."""
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
    """Draw and measure what an adaptation of a network needs: unseen rows, the classes that are left, the judge.

    Parameters
    ----------
    state
        The network as it is, or the linear model that becomes one.
    tasks
        What changes.
    draw
        Gives real rows of the data that stays.
    training
        Its budget, learning rate and seed.
    holdout
        Rows that nobody has seen. Without them, some of the retained ones are set aside.
    watch
        Called after each step of the judge; True ends its training.

    Returns
    -------
    Survey
        With the yardstick that any candidate can be held against.

    Raises
    ------
    ValueError
        If no examples are left, or tasks contradict the state or each other.
    """
    training, change, cost, old = training or Training(), Change.of(tasks), Cost(), state.predictor
    draw = lru_cache(maxsize=1)(draw)  # the first chunk, the judge and the network begin with the same rows
    removed_keys, added_keys = keys_of(change.removed), keys_of(change.added)
    count_after(state, removed_keys, added_keys)
    retained, new = state.count - len(removed_keys), len(added_keys)
    predictor = old if change.architecture is None else new_predictor(old, change.architecture, training.seed)
    body, size, seed = predictor is not old, RowStream.chunk_size(predictor), 1_000_003 * (training.seed + 1)
    with cost.timed():
        added, removed = (sample_rows(some, MAX_CHUNKS * size, seed) for some in (change.added, change.removed))
        for rows in (added, removed):
            if rows is not None:
                predictor.check(rows)
        first = draw(size, seed)
        kept, came = class_counts(old, first), class_counts(old, added)
        unseen = sample_rows([holdout], UNSEEN_ROWS, seed)
        if unseen is not None and kept is not None and came is not None:
            # rows of a class that has no row left must not count against forgetting it
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
            change,
            predictor,
            new_regularizer(state, change, predictor),
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
                body or change.regularizer is not None,
                max(1.0, state.count / (retained + new)),
            ),
            reserved,
            tilt_of(old.family, kept, class_counts(old, removed)),
            seed,
            draw,
            cost,
        )
        lost = None if kept is None or came is None else kept + came == 0
        return add_judgement(survey, lost, training, watch) if removed is not None and len(unseen) else survey


def add_judgement(survey: Survey, lost: Tensor | None, training: Training, watch: Watch | None) -> Survey:
    """The survey with what a judge says: a network that saw retained and added rows only, and not many.

    `lost` says which classes have no row left.
    """
    judge = Predictor(survey.predictor.spec, training.seed + 1, survey.predictor.device)
    cost, yardstick = survey.cost, survey.yardstick
    judge.encoder.load_state_dict(survey.predictor.encoder.state_dict())
    rows = survey.minibatches(judge, order=1)

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        z, y, weight = rows.take()
        f = judge.outputs_of_encoded(w, z, training=True)
        return (weight * judge.family.loss(y, f)).mean(), len(z)

    assert survey.removed is not None
    steps, w = max(1, min(JUDGE_VISITS, survey.budget // 4) // len(rows)), survey.initial_weights(judge)
    unseen, before = yardstick.unseen, yardstick.before if yardstick.holdout else None
    rate = training.learning_rate * (
        1 if survey.count >= SMALL_DATA_ROWS else 2
    )  # as a training from scratch, but in a hurry
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)  # dropout draws from the global generator
        for _ in range(JUDGE_ROUNDS):
            w = descend(w, step_loss, steps, cost, rate=rate, cooling=0.5, watch=watch).w
            cost.forward_passes += len(unseen) + len(survey.removed)
            judgement = Judgement.of(judge, w, survey.removed, unseen, before, lost)
            if judgement.is_fit(yardstick.before):
                break
    return replace(survey, yardstick=replace(yardstick, judgement=judgement))
