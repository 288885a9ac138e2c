"""Cross-validation of a head: what it predicts for the rows of each fold after learning all others.

The optimum of all rows is the start. Passes that all folds share continue until each fold is within the tolerance of
its own optimum (`fold_solver.py`; `group_removals.py` where single precision does not suffice, or steps converge
slowly). For several penalties, each starts from the optima of the previous one. A table's units are measured without
the fold; where that changes them, which is rare because they are rounded, the fold gets features of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.analyses.fold_solver import FoldSolver, fits_single_precision
from core.kprior.analyses.group_removals import weights_without
from core.kprior.analyses.head import Head, HeadData, head_of
from core.kprior.analyses.head_curvature import HeadCurvature
from core.kprior.data.examples import Data
from core.kprior.data.keyed_random import uniform
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.model.spec import Spec
from core.kprior.passes.moments import Moments
from core.kprior.solvers import Progress
from core.kprior.state import State
from core.kprior.training.training import train

TOLERANCE = 1e-4
"""Relative distance of each fold's weights to their optimum."""
SAMPLE_ROWS_PER_WEIGHT, MIN_SAMPLE_ROWS = 100, 5_000
"""Rows that the curvature of a step is computed from; it affects the speed of convergence only."""
FoldOf = Callable[[Tensor], Tensor]
"""The fold of each row, from its key: (n,) -> (n,) numbers from 0."""


@dataclass(frozen=True)
class CrossValidation:
    """What a model predicts for every row after learning the other folds, in the order of the data.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import CrossValidation, Examples, cross_validate, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(8.0)[:, None].double()
    >>> rows = Examples(torch.arange(8), x, 3 * x)
    >>> found: CrossValidation = cross_validate(train(spec, [rows]).state, [rows], lambda key: key % 2, 2)[0]
    >>> found.fold.tolist(), found.outputs.shape
    ([0, 1, 0, 1, 0, 1, 0, 1], torch.Size([8, 1]))
    """

    key: Tensor
    """(N,)."""
    y: Tensor
    """(N, K)."""
    fold: Tensor
    """(N,)."""
    outputs: Tensor
    """(N, K)."""
    distance: float
    """The largest relative distance of a fold's weights to their optimum, as estimated from the last steps."""
    state: State
    """The model that was cross-validated; its family gives the meaning of the outputs."""
    whole: bool
    """False if only the last layer of a network was fitted in each fold."""
    sample_weight: Tensor
    """(N,) weights of the rows, without those of classes."""


def fold_by_key(folds: int) -> FoldOf:
    """Folds of single rows, drawn by a hash of their keys.

    >>> fold_by_key(5)(torch.arange(1000)).bincount().min() > 150
    tensor(True)
    """
    return lambda key: (uniform(key, 2**41) * folds).ceil().long().clamp(1, folds) - 1


def cross_validate(
    state: State,
    data: Data,
    fold_of: FoldOf,
    folds: int,
    specs: Sequence[Spec] = (),
    progress: Progress | None = None,
) -> list[CrossValidation]:
    """Cross-validate a model, or variants of it, on the same folds.

    Parameters
    ----------
    state
        The model.
    data
        All examples that it was trained on.
    fold_of
        The fold of each row, from its key.
    folds
        Number of folds.
    specs
        Specs to compare; by default, the model's own. A spec with another architecture is trained first.
    progress
        Called with a fraction from 0 to 1 and a phrase; may raise to stop the work.

    Returns
    -------
    list of CrossValidation
        One for each spec.

    Raises
    ------
    ValueError
        If there are fewer than two folds, or a fold has no rows or all of them.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, cross_validate, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None].double()
    >>> rows = Examples(torch.arange(10), x, 3 * x + torch.sin(x))
    >>> found = cross_validate(train(spec, [rows]).state, [rows], lambda key: key % 2, 2)[0]
    >>> half = train(spec, [rows.take(rows.key % 2 == 1)]).state
    >>> torch.allclose(found.outputs[::2], half.predictor.outputs(half.w, x[::2]), rtol=1e-3)
    True
    """
    if folds < 2:
        raise ValueError("Cross-validation needs at least two folds.")
    validator = Validator(state, data, fold_of, folds)
    found = []
    for i, spec in enumerate(specs or [state.spec]):
        if progress is not None:
            progress(i / max(1, len(specs)), "Cross-validating" if len(specs) < 2 else f"Cross-validating {i + 1}")
        found.append(validator.run(spec))
    return found


class Validator:
    """Cross-validates variants of a model, and keeps what they share."""

    def __init__(self, state: State, data: Data, fold_of: FoldOf, folds: int) -> None:
        self.data, self.fold_of, self.folds = data, fold_of, folds
        self.use(state)
        rows = list(self.shared)
        self.key = self.shared.keys()
        self.fold = fold_of(self.key)
        self.y = torch.cat([some.y for some in rows]) if rows else torch.zeros(0, 1)
        self.sample_weight = torch.cat([torch.zeros(0).double(), *(some.sample_weight for some in rows)])
        sizes = torch.bincount(self.fold, minlength=folds)
        if len(self.fold) == 0 or bool((sizes == 0).any()) or len(sizes) > folds:
            raise ValueError(f"{len(self.key)} examples cannot be split into {folds} folds. Use fewer folds.")
        self.units = self.measure_units()

    def use(self, state: State) -> None:
        """Validate a model with other features."""
        self.state, self.head = state, head_of(state)
        self.shared, self.w = HeadData(self.head, self.data), self.head.w
        self.solver: FoldSolver | None = None

    def measure_units(self) -> list[tuple[Tensor, Tensor] | None]:
        """For each fold, mean and deviation of the columns of all others; None if the model has no units."""
        encoder = self.head.predictor.encoder
        if not self.head.whole or not isinstance(encoder, TableEncoder) or not encoder.numbers:
            return [None] * self.folds
        parts = [Moments(encoder.numbers) for _ in range(self.folds)]
        for chunk in self.data:
            ours = self.fold_of(chunk.key.cpu())
            for k in ours.unique().tolist():
                parts[k].add(chunk.take(ours == k))
        found: list[tuple[Tensor, Tensor] | None] = []
        for k in range(self.folds):
            others = Moments(encoder.numbers)
            for i, part in enumerate(parts):
                if i != k:
                    others.merge(part.sums())
            found.append((others.mean, others.deviation))
        return found

    def run(self, spec: Spec) -> CrossValidation:
        if not same_features(spec, self.state.spec):
            self.use(train(spec, self.data).state)
        head = replace(self.head.penalised(spec["regularizer"]), w=self.w)
        own = [k for k in range(self.folds) if self.has_own_units(k)]
        shared = [k for k in range(self.folds) if k not in own]
        outputs = torch.empty(len(self.key), head.outputs, dtype=head.w.dtype)
        distance = self.solve_quickly(head, shared, outputs)
        if distance is None:
            distance = self.solve(head, shared, outputs)
        head = replace(head, w=self.w)
        for k in own:
            other = self.in_units_of(head, spec, k)
            data = HeadData(other, self.data)
            inverse = self.measure_curvature(head).scaled(1 - 1 / self.folds).inverse(head)
            alone = weights_without(
                other, data, self.fold, self.folds, inverse, tolerance=TOLERANCE, only=torch.tensor([k])
            )
            distance = max(distance, float(alone.distance[0]))
            self.predict(other, data, {k: alone.w[0]}, outputs)
        whole, weight = head.whole, self.sample_weight
        return CrossValidation(self.key, self.y, self.fold, outputs, distance, self.state, whole, weight)

    def solve_quickly(self, head: Head, folds: list[int], outputs: Tensor) -> float | None:
        """Fill in the outputs of some folds in single precision; returns the largest distance to an optimum.

        None if single precision does not suffice, or steps converge slowly.
        """
        if self.solver is None:
            if not fits_single_precision(head, self.shared):
                return None
            self.solver = FoldSolver(head, self.shared, self.fold, folds, self.stride(head))
        found = self.solver.solve(head, TOLERANCE)
        if found is None:
            return None
        self.w = found.w[-1]
        self.solver.predict(head, outputs)
        return float(found.distance.max())

    def solve(self, head: Head, folds: list[int], outputs: Tensor) -> float:
        """Fill in the outputs of some folds; returns the largest distance to an optimum."""
        none = torch.full_like(self.fold, -1)
        near = self.measure_curvature(head).inverse(head)
        base = weights_without(head, self.shared, none, 1, near, tolerance=TOLERANCE)
        head = replace(head, w=base.w[0])
        self.w, inverse = head.w, self.measure_curvature(head).scaled(1 - 1 / self.folds).inverse(head)
        if not folds:
            return float(base.distance[0])
        only = torch.tensor(folds)
        found = weights_without(head, self.shared, self.fold, self.folds, inverse, tolerance=TOLERANCE, only=only)
        self.predict(head, self.shared, {k: found.w[i] for i, k in enumerate(folds)}, outputs)
        return float(found.distance.max())

    def stride(self, head: Head) -> int:
        """Every how many rows the curvature of a step is computed from."""
        return max(1, len(self.key) // max(MIN_SAMPLE_ROWS, SAMPLE_ROWS_PER_WEIGHT * head.size))

    def measure_curvature(self, head: Head) -> HeadCurvature:
        return HeadCurvature.measure(head, self.shared, self.stride(head))

    def has_own_units(self, k: int) -> bool:
        """Whether the units of a fold differ from the model's."""
        units, encoder = self.units[k], self.head.predictor.encoder
        if units is None or not isinstance(encoder, TableEncoder):
            return False
        fresh = deepcopy(encoder)
        fresh.set_units(*units)
        return not all(torch.equal(a, b) for a, b in zip(fresh.buffers(), encoder.buffers(), strict=True))

    def in_units_of(self, head: Head, spec: Spec, k: int) -> Head:
        """The head with the units of a fold."""
        predictor = Predictor(head.predictor.spec)
        assert isinstance(predictor.encoder, TableEncoder)
        units = self.units[k]
        assert units is not None
        predictor.encoder.set_units(*units)
        penalty = regularizer_of(spec["regularizer"], predictor)
        return replace(head, regularizer=penalty, features=predictor.features, predictor=predictor)

    def predict(self, head: Head, data: HeadData, weights: dict[int, Tensor], outputs: Tensor) -> None:
        """Fill in the outputs of the rows of some folds."""
        place = torch.full((self.folds,), -1)
        place[torch.tensor(list(weights))] = torch.arange(len(weights))
        W = torch.cat([w.view(head.outputs, -1) for w in weights.values()])
        for rows in data:
            ours = place[self.fold[rows.start : rows.stop]]
            there = torch.nonzero(ours >= 0)[:, 0]
            f = (rows.phi @ W.T).view(len(rows), len(weights), -1)
            outputs[rows.start + there] = f[there, ours[there]]


def same_features(one: Spec, other: Spec) -> bool:
    """Whether two specs differ in their regularizers at most."""
    names = ("input", "target", "architecture", "class_weight", "loss")
    return all(one.get(name) == other.get(name) for name in names)
