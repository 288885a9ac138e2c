"""The result of training and of adaptation."""

from dataclasses import dataclass

from core.kprior.certificate.certificate import Certificate
from core.kprior.data.examples import Examples
from core.kprior.passes.cost import Cost
from core.kprior.state import State


@dataclass(frozen=True)
class Result:
    """A new state, the rows that its memory refers to, and the cost.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> result = train(spec, [Examples(torch.arange(6), x, 3 * x + 1)])
    >>> result.converged, result.state.count, len(result.memory), result.certificate.kind
    (True, 6, 1, 'bound')
    """

    state: State
    memory: Examples
    cost: Cost
    converged: bool
    certificate: Certificate | None = None
    """The certificate, if there is one without another pass over the data."""
