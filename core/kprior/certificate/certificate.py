"""The certificate: how far a model can be from the retrain that nobody ran.

A GLM whose Hessian fits has one without a pass over the data (`anchored_bound.py`); a pass over the retained data moves
its anchor, and gives a tighter one. Wide GLMs need a pass. For networks no bound exists: the residual is measured, and
no more is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.kprior.certificate.network import Audit
from core.kprior.cost import Cost
from core.kprior.data.examples import Examples
from core.kprior.state import State


@dataclass(frozen=True)
class Certificate:
    """What is known of how far a model can be from a retrain on the same data.

    Examples
    --------
    >>> from core.kprior import Certificate
    >>> certificate = Certificate("bound", gradient_norm=1e-3, passes=1, bound=0.02, relative=0.005)
    >>> certificate.meets(0.01), certificate.meets(0.001)
    (True, False)
    """

    kind: str
    """"bound" for GLMs, "measured" for networks."""
    gradient_norm: float
    """Covers |grad F(w)| of the retained objective at the model's weights; not a number for networks."""
    passes: int
    """Over the retained data; 0 where none was made."""
    bound: float | None = None
    """Covers |w - w_retrain|; infinite if the model is too far off to tell. None for networks."""
    relative: float | None = None
    """bound / |w|. None for networks."""
    prediction_bound: float | None = None
    """Covers the change of any mean prediction on the examples that were given to look at."""
    audit: Audit | None = None
    """What was measured of a network."""

    def meets(self, tolerance: float) -> bool:
        """Whether the relative bound is within a tolerance; never for a network, which has none."""
        return self.relative is not None and self.relative <= tolerance


@dataclass(frozen=True)
class Measurement:
    """A certificate, the state with the sums that the pass found, and the step it suggests.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, certify, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> data = [Examples(torch.arange(6), x, 3 * x + 1)]
    >>> base = train(spec, data)
    >>> measurement = certify(base.state, base.memory, data)
    >>> round(measurement.value, 4), measurement.cost.data_passes  # the objective there, and what it took
    (4.2568, 1)
    """

    certificate: Certificate
    state: State
    memory: Examples
    """The rows that the state's memory refers to."""
    refined: State | None
    """The state after the step, with its own certificate below; None where no step is known."""
    refined_certificate: Certificate | None
    cost: Cost
    value: float = math.nan
    """F(w), the retained objective (GLMs)."""


def check_count(state: State, count: int) -> None:
    """A bound from other rows than those a state stands for would be none."""
    if count != state.count:
        raise ValueError(f"the state stands for {state.count} examples, but {count} were given to certify it")
