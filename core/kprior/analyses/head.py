"""The linear head of a model, which analyses adapt: all of a GLM, or the last layer of a network.

A new kind of head joins by another branch of `head_of`: analyses need its features, and nothing else of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.data.examples import Data, Examples
from core.kprior.model.families import Family
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import Regularizer
from core.kprior.passes.last_layer import last_size
from core.kprior.state import State

MAX_CACHED_BYTES = 2**30
"""Features beyond this limit are computed again in every pass."""
CHUNK_ROWS = 8_192


@dataclass(frozen=True)
class HeadRows:
    """Rows as an analysis sees them, in the order of the data."""

    start: int
    """Number of rows before these."""
    key: Tensor
    """(n,)."""
    phi: Tensor
    """(n, D) features, the last one 1."""
    y: Tensor
    """(n, K)."""
    weight: Tensor | None
    """(n,), with the weights of the classes; None if all are 1."""
    sample_weight: Tensor
    """(n,) of the examples alone, by which metrics are weighted."""

    def __len__(self) -> int:
        return len(self.key)

    @property
    def stop(self) -> int:
        return self.start + len(self.key)

    def every(self, stride: int) -> HeadRows:
        """Every `stride`-th row."""
        if stride == 1:
            return self
        some = slice(self.start % stride, None, stride)
        weight = None if self.weight is None else self.weight[some]
        return HeadRows(self.start, self.key[some], self.phi[some], self.y[some], weight, self.sample_weight[some])

    def weigh(self, values: Tensor) -> Tensor:
        """Values (n, ...), multiplied by the weight of each row."""
        return values if self.weight is None else values * self.weight.view(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True)
class Head:
    """A model whose outputs are W phi(x), with its weights and its penalty."""

    family: Family
    w: Tensor
    """(P,) weights, output by output: P = K D."""
    regularizer: L2
    features: Callable[[Tensor], Tensor]
    """(n, ...) raw inputs -> (n, D), the last column 1."""
    weigh: Callable[[Examples], Tensor | None]
    predictor: Predictor
    whole: bool
    """Whether the head is the whole model. Otherwise the rest is taken as given, and results are estimates."""

    @property
    def outputs(self) -> int:
        return self.family.outputs

    @property
    def size(self) -> int:
        return len(self.w)

    def penalised(self, spec: Regularizer) -> Head:
        """The same head with another regularizer."""
        found = regularizer_of(spec, self.predictor)
        return replace(self, regularizer=found if self.whole else last_of(self.predictor, found))

    def predict(self, phi: Tensor, w: Tensor | None = None) -> Tensor:
        """Outputs: (n, D) -> (n, K)."""
        return phi @ (self.w if w is None else w).view(self.outputs, -1).T

    def shifts(self) -> Tensor | None:
        """(P, s) directions in which the weights of a softmax can move without changing its predictions."""
        if self.family.name != "categorical":
            return None
        free = torch.nonzero((self.regularizer.delta.view(self.outputs, -1) == 0).all(0))[:, 0]
        made = torch.zeros(self.outputs, self.size // self.outputs, len(free)).to(self.w)
        made[:, free, torch.arange(len(free))] = self.outputs**-0.5
        return made.reshape(self.size, -1) if len(free) else None

    def complete(self, G: Tensor) -> Tensor:
        """The Hessian: curvature (P, P) plus the penalty, with the flat directions of a softmax filled in."""
        H, shifts = G + torch.diag(self.regularizer.delta), self.shifts()
        return H if shifts is None else H + H.diagonal().mean() * shifts @ shifts.T


class HeadData:
    """All rows of some data as features, kept in memory while they fit. Can be read any number of times."""

    def __init__(self, head: Head, data: Data) -> None:
        self.head, self.data = head, data
        self._kept: list[HeadRows] = []
        self._complete = self._too_large = False
        self.passes = 0
        """How often the data were read."""

    def __iter__(self) -> Iterator[HeadRows]:
        if self._complete:
            yield from self._kept
            return
        self.passes += 1
        self._kept, start, size = [], 0, 0
        for chunk in self.data:
            for some in chunk.chunks(CHUNK_ROWS):
                if len(some) == 0:
                    continue
                phi = self.head.features(some.x)
                given = torch.ones(len(some)).double() if some.weight is None else some.weight.double().cpu()
                rows = HeadRows(start, some.key.cpu(), phi, some.y.to(phi), self.head.weigh(some), given)
                start, size = rows.stop, size + phi.numel() * phi.element_size()
                self._too_large = self._too_large or size > MAX_CACHED_BYTES
                if self._too_large:
                    self._kept = []
                else:
                    self._kept.append(rows)
                yield rows
        self._complete = not self._too_large

    @property
    def kept(self) -> bool:
        """Whether all rows are in memory."""
        return self._complete

    def keys(self) -> Tensor:
        """(N,) the keys of all rows."""
        return torch.cat([torch.zeros(0, dtype=torch.long), *(rows.key for rows in self)])


def head_of(state: State) -> Head:
    """The head of a model.

    Parameters
    ----------
    state
        Any model.

    Returns
    -------
    Head
        Of a network, the last layer.

    Raises
    ------
    ValueError
        If a network's last layer is not known.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> head = head_of(train(spec, [Examples(torch.arange(6), x, 3 * x + 1)]).state)
    >>> head.whole, head.features(x).shape
    (True, torch.Size([6, 2]))
    """
    predictor, w = state.predictor, state.w
    if predictor.linear:
        return Head(predictor.family, w, state.regularizer, predictor.features, predictor.weigh, predictor, True)
    if last_size(predictor) == 0:
        raise ValueError("The last layer of this network is not known; only previews are available for it.")
    return Head(
        predictor.family,
        as_head(predictor, w.double()),
        last_of(predictor, state.regularizer),
        lambda x: predictor.last_features(x, w).double(),
        predictor.weigh,
        predictor,
        False,
    )


def as_head(predictor: Predictor, w: Tensor) -> Tensor:
    """The weights of a network's last layer in the order of a head: each output's weights, then its bias."""
    K = predictor.family.outputs
    ours = w[-last_size(predictor) :]
    return torch.cat([ours[:-K].view(K, -1), ours[-K:, None]], 1).reshape(-1)


def last_of(predictor: Predictor, regularizer: L2) -> L2:
    """The part of a network's regularizer that concerns its last layer."""
    parts = (regularizer.delta, regularizer.linear, regularizer.toward)
    return L2(*(None if part is None else as_head(predictor, part.double()) for part in parts))  # type: ignore[arg-type]
