"""The result of a pass over the data: a certificate, and the measured state."""

import math
from dataclasses import dataclass
from enum import Enum

from core.kprior.certificate.certificate import Certificate
from core.kprior.data.examples import Examples
from core.kprior.passes.cost import Cost
from core.kprior.state import State


class Reuse(Enum):
    """Which parts of a state a refinement may rely on."""

    SUMS = "sums"
    """Everything: no pass is made if the sums at the anchor suffice."""
    LEVERAGES = "leverages"
    """The weights, and the leverages that decide which examples are remembered: at least one pass is made."""
    WEIGHTS = "weights"
    """The weights alone: everything else is measured first."""


@dataclass(frozen=True)
class Measurement:
    """A certificate, the state with the measured sums, and a step towards the retrain.

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
    >>> round(measurement.value, 4), measurement.cost.data_passes  # the objective, and the cost
    (4.2568, 1)
    """

    certificate: Certificate
    state: State
    memory: Examples
    """The rows that the state's memory refers to."""
    refined: State | None
    """The state after the step, with its own certificate below; None if there is no step."""
    refined_certificate: Certificate | None
    cost: Cost
    value: float = math.nan
    """F(w), the retained objective (GLMs)."""


def check_count(state: State, count: int) -> None:
    """A bound is valid only for the rows that the state represents."""
    if count != state.count:
        raise ValueError(f"The state represents {state.count} examples, but {count} were passed to certify it.")
