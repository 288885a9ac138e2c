"""Ill-conditioned problems for the certificate: badly scaled, collinear, offset, far off; and their exact fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from core.kprior import Cost, Examples, MemoryPolicy, Select, State
from core.kprior.memory.memory import MemoryChoice
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.state.anchor import Anchor
from core.kprior.state.measurement import measure
from tests.core.kprior import oracles
from tests.core.kprior.problems import LINEAR, LOSSES, l2, labels_for, outputs_of, spec_of


@dataclass(frozen=True)
class IllConditionedProblem:
    """One problem, and weights that are some way off its optimum."""

    kind: str
    seed: int
    n: int = 30
    dim: int = 2
    delta: float = 1.0
    """As a power of ten."""
    penalize_bias: bool = False
    first_delta: float | None = None
    """The first column's own, as a power of ten."""
    toward: float | None = None
    """The size of the prior mean, as a power of ten; none: zero."""
    scales: tuple[float, ...] = ()
    """A power of ten for each feature; none given: all one."""
    collinear: float | None = None
    """The last feature is the first plus noise of this power of ten."""
    offset: float = 0.0
    weights: float | None = None
    """Rows count between this power of ten and one over it, and classes up to 3; none: all the same."""
    soft: bool = False
    away: float = -2.0
    """How far the weights are from the optimum, as a power of ten; in units of their size, or of H's norm."""
    by_curvature: bool = True
    stale: float | None = None
    """The state's curvature was taken this power of ten away from its weights; None: there is none."""

    @property
    def spec(self) -> dict[str, Any]:
        regularizer = l2(10.0**self.delta, self.penalize_bias)
        if self.first_delta is not None:
            regularizer["columns"] = {"0": 10.0**self.first_delta}
        if self.toward is not None:
            rng, size = np.random.default_rng(self.seed + 3), outputs_of(self.kind) * (self.dim + 1)
            regularizer["toward"] = (10.0**self.toward * rng.normal(size=size)).tolist()
        spec = spec_of(self.kind, self.dim, LINEAR, regularizer)
        if self.weights is not None and self.kind in ("binary", "classes", "squared_hinge"):
            spec["class_weight"] = {"0": 0.5, "1": 3.0}
        return spec

    @cached_property
    def data(self) -> Examples:
        rng = np.random.default_rng(self.seed)
        x = rng.normal(size=(self.n, self.dim))
        if self.collinear is not None and self.dim > 1:
            x[:, -1] = x[:, 0] + 10.0**self.collinear * x[:, -1]
        x = x + self.offset * rng.normal(size=self.dim)
        f = torch.from_numpy(x @ rng.normal(size=(self.dim, outputs_of(self.kind))))
        generator = torch.Generator().manual_seed(self.seed)
        y = labels_for(self.kind, f, generator)
        if self.soft and self.kind in ("binary", "classes"):
            y = 0.9 * y + 0.1 / max(2, y.shape[1])
        # every class is there and some count is not zero, or an unpenalised bias has no optimum
        if self.kind == "classes":
            y[:3] = torch.eye(3)
        elif self.kind not in ("number", "huber"):
            y[0, 0], y[1, 0] = 0, 1
        for column, power in enumerate(self.scales[: self.dim]):
            x[:, column] *= 10.0**power
        weight = None if self.weights is None else 10.0 ** (self.weights * rng.uniform(-1, 1, self.n))
        return Examples(torch.arange(self.n), torch.from_numpy(x), y, None if weight is None else torch.tensor(weight))

    @cached_property
    def phi(self) -> oracles.Array:
        return oracles.design_matrix(self.data.x, LINEAR)

    @cached_property
    def deltas(self) -> oracles.Array:
        return oracles.deltas_of(self.spec, outputs_of(self.kind), self.dim + 1)

    @cached_property
    def mean(self) -> oracles.Array:
        return oracles.mean_of(self.spec, len(self.deltas))

    @cached_property
    def optimum(self) -> oracles.Array:
        """The retrain in long double."""
        return oracles.newton(self.kind, self.phi, self.data.y.numpy(), self.deltas, self.mean, weight=self.row_weights)

    @cached_property
    def row_weights(self) -> oracles.Array | None:
        return oracles.row_weights(self.spec, self.data)

    def away_from_optimum(self) -> Tensor:
        rng = np.random.default_rng(self.seed + 1)
        step = 10.0**self.away * rng.normal(size=len(self.optimum))
        if self.by_curvature:
            _, H = oracles.derivatives(
                self.kind,
                self.phi,
                self.data.y.numpy(),
                self.deltas,
                self.optimum.astype(float),
                self.mean,
                self.row_weights,
            )
            values, vectors = np.linalg.eigh(H)
            step = vectors @ (step / np.sqrt(np.maximum(values, 1e-12 * values[-1])))
            # a softmax's shift costs nothing, so it would come out a million times larger than all the rest
            shifts = oracles.flat_directions(self.kind, self.deltas.reshape(-1, self.dim + 1)).astype(np.float64)
            step = step - shifts.T @ (shifts @ step - rng.normal(size=len(shifts)))
        else:
            step = step * np.abs(self.optimum).max()
        return torch.from_numpy(self.tamed((self.optimum + step).astype(np.float64)))

    def tamed(self, w: oracles.Array) -> oracles.Array:
        """For counts, halfway back to the optimum until no mean is beyond e^50; overflow has a test of its own."""
        while self.kind == "count" and np.abs(self.phi @ w).max() > 50:
            near = self.optimum.astype(np.float64)
            if np.abs(w - near).max() <= 1e-12 * np.abs(near).max():
                break
            w = (w + near) / 2
        return w

    def state(self) -> tuple[State, Examples]:
        """A state at the weights, and the rows of its memory."""
        predictor = Predictor(self.spec)
        regularizer = regularizer_of(self.spec["regularizer"], predictor)
        w = self.away_from_optimum()
        policy = MemoryPolicy(fraction=0.3, select=Select.RANDOM)
        chunks = self.data.chunks(7)
        found = measure(predictor, regularizer, w, chunks, MemoryChoice(policy, policy.size(self.n)), None, Cost())
        curvature = None
        if self.stale is not None:
            rng = np.random.default_rng(self.seed + 2)
            there = w + 10.0**self.stale * w.norm() * torch.from_numpy(rng.normal(size=len(w)))
            there = torch.from_numpy(self.tamed(there.numpy()))
            curvature = measure(
                predictor, regularizer, there, chunks, MemoryChoice(policy, 1), "full", Cost()
            ).anchor.curvature
        anchor = Anchor(w, found.anchor.gradient, curvature)
        state = State(predictor, regularizer, self.spec["regularizer"], w, anchor, found.memory, self.n)
        return state, found.rows

    def distance(self, w: Tensor) -> float:
        """|w - optimum|, without the shifts that change no prediction."""
        gap = self.optimum - w.numpy().astype(oracles.LONG)
        shifts = oracles.flat_directions(self.kind, self.deltas.reshape(-1, self.dim + 1))
        return float(np.linalg.norm((gap - shifts.T @ (shifts @ gap)).astype(np.float64)))

    def largest_change(self, w: Tensor) -> float:
        """The largest difference of any mean prediction to the optimum's, on the data itself."""
        gap = self.means(self.optimum) - self.means(w.numpy().astype(oracles.LONG))
        return float(np.abs(gap).max())

    def means(self, w: oracles.Array) -> oracles.Array:
        """The mean predictions of all rows."""
        return oracles.means(self.kind, self.phi.astype(oracles.LONG) @ w.reshape(-1, self.dim + 1).T)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Powers of ten, few enough digits to read."""
    return st.integers(round(low * 4), round(high * 4)).map(lambda q: q / 4)


def ill_conditioned_problems(kinds: tuple[str, ...] = LOSSES) -> st.SearchStrategy[IllConditionedProblem]:
    """All of it mixed."""
    return st.builds(
        IllConditionedProblem,
        kind=st.sampled_from(kinds),
        seed=st.integers(0, 2**20),
        n=st.integers(6, 60),
        dim=st.integers(1, 4),
        delta=powers(-6, 3),
        penalize_bias=st.booleans(),
        first_delta=st.one_of(st.none(), powers(-6, 3)),
        toward=st.one_of(st.none(), powers(-3, 1)),
        scales=st.one_of(st.just(()), st.lists(powers(-3, 3), min_size=4, max_size=4).map(tuple)),
        collinear=st.one_of(st.none(), powers(-7, 0)),
        weights=st.one_of(st.none(), powers(0, 3)),
        offset=st.sampled_from((0.0, 0.0, 10.0)),
        soft=st.booleans(),
        away=powers(-16, 0.5),
        by_curvature=st.booleans(),
        stale=st.one_of(st.none(), powers(-3, 0)),
    )
