"""One selection of a memory over a stream of examples: parts of a stream can be selected apart and merged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from core.kprior.curvature import BACKENDS, Curvature, Full, cholesky, ggn_rows, row_chunks
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.examples import Examples, concatenate
from core.kprior.memory.memory import Memory, MemoryPolicy, Select, remember
from core.kprior.memory.sampling import PrioritySampler
from core.kprior.model.gauge import ground, shift_directions
from core.kprior.model.predictor import Predictor


class MemorySelection:
    """One selection over a stream of examples, by one rule."""

    def __init__(
        self,
        policy: MemoryPolicy,
        size: int,
        predictor: Predictor,
        w: Tensor,
        curvature: Curvature | None,
        delta: Tensor,
        seed: int,
        bare: bool = False,
    ) -> None:
        """`bare` keeps no rows, only their keys: whoever takes the memory finds them again."""
        self._asked = (policy, curvature, delta)
        select = policy.select
        if select is Select.AUTO:
            full = curvature is not None and curvature.kind == "full"
            select = Select.LEVERAGE if full else Select.RANDOM
        if select is Select.LEVERAGE and curvature is None:
            raise ValueError("selection by leverage needs curvature")
        self.select, self.size, self.predictor, self.w, self.seed, self.bare = select, size, predictor, w, seed, bare
        self.balance = policy.balance and predictor.family.name in ("bernoulli", "categorical")
        self._leverage, self._inverse = None, None
        if curvature is not None and select is Select.LEVERAGE:
            if predictor.linear and isinstance(curvature, Full):
                whole = ground(curvature.matrix + torch.diag(delta), shift_directions(predictor, delta))
                self._inverse = torch.cholesky_inverse(cholesky(whole))
            else:
                self._leverage = curvature.leverage(delta)
        self._selectors: dict[int, PrioritySampler] = {}

    def offer(self, examples: Examples, weight: Tensor | None = None) -> None:
        """Take the next examples of the stream."""
        score = self._score(examples)
        kept = examples.bare() if self.bare else examples
        if not self.balance:
            self._selector(0).offer(kept, score, weight)
            return
        label = classes_of(examples.y)
        for c in label.unique().tolist():
            here = label == c
            self._selector(c).offer(kept.take(here), score[here.cpu()], None if weight is None else weight[here])

    @property
    def needs_curvature(self) -> bool:
        """Whether a score is a matter of matrices."""
        return self.select is Select.LEVERAGE

    def empty(self) -> MemorySelection:
        """The same rule, with nothing offered yet."""
        other = copy.copy(self)
        other._selectors = {}
        return other

    def sums(self) -> Tensors:
        """What was kept of the stream so far, by name."""
        return join_groups({str(label): selector.sums() for label, selector in self._selectors.items()})

    def merge(self, sums: Tensors) -> None:
        """Take what was kept of the part of the stream that comes next."""
        for label in sorted({int(name.split(".")[0]) for name in sums}):
            mine = self._selector(label)
            mine.merge(mine.empty().with_sums(take_group(sums, str(label))))

    def question(self) -> tuple[dict[str, Any], Tensors]:
        """All that `asked` needs, as JSON and tensors."""
        policy, curvature, delta = self._asked
        kind = None if curvature is None else curvature.kind
        header = {"policy": asdict(policy), "size": self.size, "seed": self.seed, "bare": self.bare, "curvature": kind}
        scored_by = {} if curvature is None else curvature.tensors()
        return header, {"delta": delta} | join_groups({"curvature": scored_by})

    @classmethod
    def from_question(
        cls, header: dict[str, Any], tensors: Tensors, predictor: Predictor, w: Tensor
    ) -> MemorySelection:
        """The inverse of `question`."""
        policy = MemoryPolicy(**{**header["policy"], "select": Select(header["policy"]["select"])})
        curvature = None
        if header["curvature"] is not None:
            curvature = BACKENDS[header["curvature"]].from_tensors(take_group(tensors, "curvature"), predictor)
        size, seed = header["size"], header["seed"]
        return cls(policy, size, predictor, w, curvature, tensors["delta"], seed, header["bare"])

    def _selector(self, label: int) -> PrioritySampler:
        if label not in self._selectors:
            size = self.size
            if self.balance:
                size = max(1, size // max(2, self.predictor.family.outputs))
            if self.select is Select.COVERAGE:
                size = max(2_000, 4 * size)  # a pool to find the medoids in
            self._selectors[label] = PrioritySampler(
                size, self.select is not Select.CURVATURE, self.seed, self.select in (Select.RANDOM, Select.COVERAGE)
            )
        return self._selectors[label]

    def _score(self, examples: Examples) -> Tensor:
        n = len(examples)
        if self.select in (Select.RANDOM, Select.COVERAGE):
            return torch.ones(n, dtype=torch.float64)
        if self.select is Select.CURVATURE:
            return self.predictor.family.variance(self.predictor.outputs(self.w, examples.x)).sum(1).cpu()
        if self._inverse is not None:
            return self._leverage_of_glm(self._inverse, examples)
        assert self._leverage is not None
        parts, step = [], row_chunks(self.predictor, n).step
        for i in range(0, n, step):
            rows = ggn_rows(self.predictor, self.w, examples.x[i : i + step])
            parts.append(self._leverage(rows).reshape(-1, self.predictor.family.outputs).sum(1))
        return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.float64)

    def _leverage_of_glm(self, inverse: Tensor, examples: Examples) -> Tensor:
        """sum_kl h'_kl phi' (B^-1)_kl phi: the rows of a GLM's Jacobian are mostly zeros and need not be made."""
        phi, K = self.predictor.features(examples.x), self.predictor.family.outputs
        blocks = inverse.view(K, phi.shape[1], K, phi.shape[1])
        score = torch.zeros(len(phi), dtype=phi.dtype, device=phi.device)
        for rows, hessian in self.predictor.family.hessians(phi @ self.w.view(K, -1).T):
            part = phi[rows]
            if phi.shape[1] < K:  # one large product instead of many small ones
                pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), -1)
                form = pairs @ blocks.transpose(1, 2).reshape(K * K, -1).T
                score[rows] = (hessian.reshape(len(part), -1) * form).sum(1)
                continue
            for k in range(K):
                for j in range(K):
                    score[rows] += hessian[:, k, j] * ((part @ blocks[k, :, j]) * part).sum(1)
        return score.cpu()

    def take(self, generation: int = 0, rows_of: Callable[[Tensor], Examples] | None = None) -> tuple[Memory, Examples]:
        """The memory, with soft labels of the weights at hand, and the rows it refers to.

        `rows_of` finds rows that were not kept by their keys.
        """
        taken = [t for _, s in sorted(self._selectors.items()) if (t := s.take()) is not None]
        if self.bare and rows_of is not None:
            taken = [(rows_of(rows.key), weight) for rows, weight in taken]
        if not taken:
            raise ValueError("there is nothing to remember: no examples")
        if self.select is Select.COVERAGE:
            quota = max(1, self.size // len(taken))
            taken = [medoids(self.predictor, rows, weight, quota, self.seed) for rows, weight in taken]
        rows = concatenate([r for r, _ in taken])
        weight = torch.cat([v for _, v in taken])
        return remember(self.predictor, self.w, rows, weight, generation), rows


def classes_of(y: Tensor) -> Tensor:
    """(n, K) targets -> (n,) class numbers."""
    return (y[:, 0] > 0.5).long() if y.shape[1] == 1 else y.argmax(1)


def medoids(
    predictor: Predictor, rows: Examples, weight: Tensor, size: int, seed: int, rounds: int = 10
) -> tuple[Examples, Tensor]:
    """`size` medoids of the encoded inputs by k-means from a spread-out start; weights are sums over clusters."""
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
    for _ in range(rounds):
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
