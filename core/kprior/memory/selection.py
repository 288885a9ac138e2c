"""Selection of a memory from a stream of examples; selections from shards of the stream can be merged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Self

import torch
from torch import Tensor

from core.kprior.curvature.leaf_sums import leaf_leverage
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.examples import Data, Examples, chunks_of, concatenate
from core.kprior.data.keyed_random import uniform
from core.kprior.data.leaf_rows import leaf_rows
from core.kprior.memory.memory import Memory, MemoryPolicy, Select, remember
from core.kprior.memory.sampling import PrioritySampler
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import Leaves
from core.kprior.passes.accumulator import Accumulator, model_config, model_of
from core.kprior.passes.leverage import leverage_roots, leverages, whitener

HIGHEST_LEVERAGE = -1
"""Label of the sampler that keeps the rows with the highest leverage; classes are counted from 0."""


class MemorySelection(Accumulator):
    """A selection from a stream of examples by one rule."""

    kind = "selection"

    def __init__(
        self,
        policy: MemoryPolicy,
        size: int,
        predictor: Predictor,
        w: Tensor,
        hessian: Tensor | None,
        seed: int,
        bare: bool = False,
    ) -> None:
        """`hessian` (P, P), if it is known, gives the leverages. `bare` stores only the keys of rows; `take` looks the
        rows up.
        """
        self.policy, self.hessian, self.size, self.seed, self.bare = policy, hessian, size, seed, bare
        self.predictor, self.w = predictor, w
        select = policy.select
        if select in (Select.AUTO, Select.LEVERAGE):
            select = Select.RANDOM if hessian is None else Select.LEVERAGE
        self.select = select
        self.balance = policy.balance and predictor.family.classifies
        root = None if hessian is None else whitener(hessian)
        # the leverages of one output of a tree ensemble follow from pairs of leaves
        leaves = isinstance(predictor.body, Leaves) and predictor.family.outputs == 1 and not predictor.family.kinked
        self._inverse = root.T @ root if root is not None and leaves else None
        family = predictor.family
        self._roots = None if root is None or leaves else leverage_roots(root, family.outputs, family.coupled)
        self._top = size - size // 4 if select is Select.LEVERAGE and not self.balance else 0
        self._samplers: dict[int, PrioritySampler] = {}
        P = predictor.size
        self.work = 0.0 if hessian is None else float(P * P) if predictor.linear else 2000.0 * P

    def add(self, chunk: Examples) -> None:
        self.offer(chunk)

    def offer(self, examples: Examples, weight: Tensor | None = None) -> None:
        """Offer the next examples of the stream."""
        kept = examples.bare() if self.bare else examples
        if self._inverse is not None and (slots := leaf_rows(self.predictor, examples)) is not None:
            self._sampler(HIGHEST_LEVERAGE).offer(kept, leaf_leverage(slots, self._inverse).cpu())
        if self._roots is not None:
            phi = self.predictor.features(examples.x)
            leverage = leverages(self.predictor, self.w, phi, examples.y, self._roots).cpu()
            self._sampler(HIGHEST_LEVERAGE).offer(kept, leverage)
        score = self._score(examples)
        if not self.balance:
            self._sampler(0).offer(kept, score, weight)
            return
        label = classes_of(examples.y)
        for c in label.unique().tolist():
            of_class = label == c
            self._sampler(c).offer(
                kept.take(of_class), score[of_class.cpu()], None if weight is None else weight[of_class]
            )

    @property
    def reach(self) -> float:
        """The highest leverage of the examples outside the top sample; zero if there are none."""
        return self._sampler(HIGHEST_LEVERAGE).threshold

    @property
    def peak(self) -> float:
        """The highest leverage of all examples."""
        return self._sampler(HIGHEST_LEVERAGE).highest

    def empty(self) -> Self:
        other = copy.copy(self)
        other._samplers = {}
        return other

    def sums(self) -> Tensors:
        return join_groups({str(label): sampler.sums() for label, sampler in self._samplers.items()})

    def merge(self, sums: Tensors) -> None:
        for label in sorted({int(name.split(".")[0]) for name in sums}):
            mine = self._sampler(label)
            mine.merge(mine.empty().with_sums(take_group(sums, str(label))))

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        header, tensors = model_config(self.predictor, self.w)
        header |= {"policy": asdict(self.policy), "size": self.size, "seed": self.seed, "bare": self.bare}
        return header, tensors if self.hessian is None else {**tensors, "hessian": self.hessian}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> MemorySelection:
        predictor, w = model_of(header, tensors, device)
        policy = MemoryPolicy(**{**header["policy"], "select": Select(header["policy"]["select"])})
        hessian = tensors["hessian"].to(device) if "hessian" in tensors else None
        return cls(policy, header["size"], predictor, w, hessian, header["seed"], header["bare"])

    def _sampler(self, label: int) -> PrioritySampler:
        if label not in self._samplers:
            if label == HIGHEST_LEVERAGE:
                self._samplers[label] = PrioritySampler(self._top, False, self.seed)
                return self._samplers[label]
            size = self.size  # some of these rows may be in the top sample as well, and are dropped
            if self.balance:
                size = max(1, size // max(2, self.predictor.family.outputs))
            if self.select is Select.COVERAGE:
                size = max(2_000, 4 * size)  # a pool of candidates for the medoids
            ranked = self.select is Select.CURVATURE
            self._samplers[label] = PrioritySampler(size, not ranked, self.seed, not ranked)
        return self._samplers[label]

    def _score(self, examples: Examples) -> Tensor:
        if self.select is Select.CURVATURE:
            f = self.predictor.outputs(self.w, examples.x)
            score = self.predictor.family.curvature(examples.y.to(f), f).sum(1)
            weight = self.predictor.weigh(examples)
            return (score if weight is None else score * weight).cpu()
        return torch.ones(len(examples), dtype=torch.float64)

    def take(self, generation: int = 0, rows_of: Callable[[Tensor], Examples] | None = None) -> tuple[Memory, Examples]:
        """The memory, with soft labels from the current weights, and the rows it refers to.

        `rows_of` looks up rows by their keys if only those were stored.
        """
        top = self._samplers[HIGHEST_LEVERAGE].take() if self._top and HIGHEST_LEVERAGE in self._samplers else None
        taken = [
            t
            for label, s in sorted(self._samplers.items())
            if label != HIGHEST_LEVERAGE and (t := s.take()) is not None
        ]
        if not taken:
            raise ValueError("Cannot select a memory: there are no examples.")
        if top is not None:
            taken = [self._beside(top[0], *each, len(taken)) for each in taken]
            taken = [top, *(each for each in taken if len(each[0]))]
        if self.bare and rows_of is not None:
            taken = [(rows_of(rows.key), weight) for rows, weight in taken]
        if self.select is Select.COVERAGE:
            quota = max(1, self.size // len(taken))
            taken = [medoids(self.predictor, rows, weight, quota, self.seed) for rows, weight in taken]
        rows = concatenate([r for r, _ in taken])
        weight = torch.cat([v for _, v in taken])
        order = torch.argsort(rows.key)
        return remember(self.predictor, self.w, rows.take(order), weight[order], generation), rows.take(order)

    def _beside(self, top: Examples, rows: Examples, weight: Tensor, groups: int) -> tuple[Examples, Tensor]:
        """A random sample of the examples outside the top sample, each representing the same number of them."""
        stays = ~torch.isin(rows.key, top.key)
        others = float(weight.sum()) - len(top) / groups
        rows, weight = rows.take(stays), weight[stays]
        quota = max(0, self.size - len(top)) // groups
        if len(rows) > quota:
            first = torch.argsort(uniform(rows.key, self.seed))[:quota].sort().values
            rows, weight = rows.take(first), weight[first]
        if len(rows):
            weight = torch.full_like(weight, max(1.0, others / len(rows)))
        return rows, weight


def select_again(
    selection: MemorySelection, kept: Examples, weight: Tensor, added: Iterable[Data], generation: int
) -> tuple[Memory, Examples]:
    """Select a memory from the retained rows of an old one, with their weights, and from added rows."""
    if len(kept):
        selection.offer(kept, weight)
    some = len(kept) > 0
    for chunk in chunks_of(added):
        selection.offer(chunk)
        some = True
    if some:
        return selection.take(generation)
    return remember(selection.predictor, selection.w, kept, weight.cpu(), generation), kept


def medoids(predictor: Predictor, rows: Examples, weight: Tensor, size: int, seed: int) -> tuple[Examples, Tensor]:
    """`size` medoids of the encoded inputs, found by k-means++; weights are sums over clusters."""
    if len(rows) <= size:
        return rows, weight
    z = predictor.encode(rows.x).flatten(1)
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(len(z), (1,), generator=generator))
    chosen, nearest = [start], ((z - z[start]) ** 2).sum(1)
    for _ in range(size - 1):
        odds = nearest.double().cpu().clamp(min=0) + 1e-30
        chosen.append(int(torch.multinomial(odds, 1, generator=generator)))
        nearest = torch.minimum(nearest, ((z - z[chosen[-1]]) ** 2).sum(1))
    centres = z[chosen]
    v = weight.to(z)
    for _ in range(10):
        cluster = torch.cdist(z, centres).argmin(1)
        mass = torch.zeros(size, dtype=z.dtype, device=z.device).index_add_(0, cluster, v)
        total = torch.zeros_like(centres).index_add_(0, cluster, z * v[:, None])
        centres = torch.where(mass[:, None] > 0, total / mass.clamp(min=1e-30)[:, None], centres)
    distance = torch.cdist(z, centres)
    cluster = distance.argmin(1)
    mass = torch.zeros(size, dtype=z.dtype, device=z.device).index_add_(0, cluster, v)
    full = torch.nonzero(mass > 0)[:, 0].tolist()
    index = torch.tensor([int(torch.where(cluster == c, distance[:, c], torch.inf).argmin()) for c in full])
    return rows.take(index), mass[full].double().cpu()
