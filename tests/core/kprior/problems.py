"""Problems that the engine's tests share: random data of every family, specs, and states away from their optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from core.kprior import Cost, Data, Examples, MemoryPolicy, State, train
from core.kprior.data.examples import concatenate
from core.kprior.memory.memory import MemoryChoice
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.passes.partitioned import PartitionedData
from core.kprior.state.measurement import measure

FAMILIES = ("binary", "classes", "number", "count")
KINKED = {"squared_hinge": "binary", "huber": "number"}
"""Losses that are quadratics in pieces, and the target of each."""
LOSSES = (*FAMILIES, *KINKED)
"""All that a linear model can be: target kinds with their own loss, and other losses."""
CLASSES = 3
EVERYTHING = MemoryPolicy(fraction=1.0, cap=10**9)
"""Full memory: every example is remembered."""
TENTH = MemoryPolicy(fraction=0.1)
LINEAR: dict[str, Any] = {"kind": "linear", "degree": 1}
KERNEL: dict[str, Any] = {"kind": "kernel", "kernel": "rbf", "features": 30, "lengthscale": 2.0}
QUADRATIC: dict[str, Any] = {"kind": "linear", "degree": 2}


def outputs_of(kind: str) -> int:
    """K of a target kind."""
    return CLASSES if kind == "classes" else 1


def target_of(kind: str) -> dict[str, Any]:
    """The target spec of a kind."""
    kind = KINKED.get(kind, kind)
    return {"kind": kind, "values": list(range(CLASSES))} if kind == "classes" else {"kind": kind}


def l2(delta: float | list[float] = 1.0, penalize_bias: bool = False) -> dict[str, Any]:
    """A regularizer spec."""
    return {"kind": "l2", "delta": delta, "penalize_bias": penalize_bias}


def spec_of(
    kind: str,
    dim: int,
    architecture: dict[str, Any] | None = None,
    regularizer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The spec of a model on vectors."""
    loss = {"loss": {"kind": kind}} if kind in KINKED else {}
    return loss | {
        "input": {"kind": "vector", "dim": dim},
        "target": target_of(kind),
        "architecture": architecture or LINEAR,
        "regularizer": regularizer or l2(),
    }


def labels_for(kind: str, f: Tensor, generator: torch.Generator) -> Tensor:
    """Targets drawn from a family at outputs f: (n, K) -> (n, K)."""
    kind = KINKED.get(kind, kind)
    if kind == "binary":
        return (torch.rand(f.shape, generator=generator) < torch.sigmoid(f)).to(f)
    if kind == "classes":
        noisy = f - torch.empty_like(f).exponential_(generator=generator).log()
        return torch.nn.functional.one_hot(noisy.argmax(1), f.shape[1]).to(f)
    if kind == "number":
        return f + torch.randn(f.shape, generator=generator, dtype=f.dtype)
    return torch.poisson(f.clamp(max=2).exp(), generator=generator)


def examples_of(kind: str, n: int, dim: int, seed: int = 0, first_key: int = 0) -> Examples:
    """n well-behaved rows whose labels depend on the inputs, with a little curvature for degree 2 to find."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    W = 0.7 * torch.randn(outputs_of(kind), dim, generator=generator, dtype=torch.float64)
    f = x @ W.T + 0.3 * x[:, :1] * x[:, -1:] - 0.2
    return Examples(torch.arange(first_key, first_key + n), x, labels_for(kind, f, generator))


def with_weights(examples: Examples, seed: int = 0, most: float = 5.0) -> Examples:
    """The same rows, each counting between once over `most` and `most` times."""
    drawn = torch.rand(len(examples), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return replace(examples, weight=most ** (2 * drawn - 1))


class ShardedExamples(PartitionedData):
    """Chunks of examples that are cut into shards."""

    def __init__(self, shards: Sequence[Sequence[Examples]]) -> None:
        self._shards = shards

    def shards(self) -> Sequence[Data]:
        return self._shards

    def rows(self, key: Tensor) -> Examples:
        every = concatenate([chunk for shard in self._shards for chunk in shard])
        return every.take(torch.isin(every.key, key))


def rows(examples: Examples, start: int, stop: int) -> Examples:
    """A range of rows."""
    return examples.take(torch.arange(start, stop))


def without(examples: Examples, removed: Examples) -> Examples:
    """The rows whose keys are not among the removed ones."""
    return examples.take(~torch.isin(examples.key, removed.key))


def stop_at(
    state: State,
    data: Examples,
    w: Tensor,
    policy: MemoryPolicy = EVERYTHING,
) -> tuple[State, Examples]:
    """The state that training would have left had it stopped at w, and its memory's rows."""
    kind = None if state.curvature is None else state.curvature.kind
    choice = MemoryChoice(policy, policy.size(len(data)))
    found = measure(state.predictor, state.regularizer, w, data.chunks(37), choice, kind, Cost())
    measured = {"anchor": found.anchor, "memory": found.memory, "surrogate": found.surrogate}
    return replace(state, w=w, count=len(data), **measured), found.rows


def stop_early(
    spec: dict[str, Any], data: Examples, policy: MemoryPolicy = EVERYTHING, away: float = 0.3, seed: int = 0
) -> tuple[State, Examples]:
    """A base that never converged: its weights are away from the optimum, and g* knows it."""
    state = train(spec, data.chunks(37), policy=policy).state
    generator = torch.Generator().manual_seed(seed)
    step = away * torch.randn(state.w.shape, generator=generator, dtype=state.w.dtype)
    return stop_at(state, data, state.w + step, policy)


def distance(state: State, reference: Tensor) -> float:
    """|w - reference| without the directions that change no prediction (a constant added to a softmax's logits)."""
    gap = state.w - reference.to(state.w)
    return float(without_shift(gap, shift_directions(state.predictor, state.regularizer.delta)).norm())


def relative_distance(state: State, reference: Tensor) -> float:
    """The same as a share of the reference's size."""
    return distance(state, reference) / float(reference.norm())
