"""Which parts of the objective are on. The paper's K-prior and its rivals are settings of one machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Weighting(StrEnum):
    """How much each memory example counts.

    Examples
    --------
    >>> from core.kprior import Weighting
    >>> [rule.value for rule in Weighting]
    ['auto', 'one', 'importance', 'balanced']
    """

    AUTO = "auto"
    """`balanced` with a full curvature, `one` with another, `importance` with none."""
    ONE = "one"
    """Each for itself (the paper)."""
    IMPORTANCE = "importance"
    """For all the examples it stands for."""
    BALANCED = "balanced"
    """The largest share of its importance that leaves the curvature outside memory positive semi-definite."""


@dataclass(frozen=True)
class Method:
    """The switches of the K-prior objective; the defaults are ours.

    Raises
    ------
    ValueError
        If labels are outside 0..1, the temperature is not positive, or tau is negative.

    Examples
    --------
    >>> from core.kprior import MODES, PAPER, Method
    >>> sorted(MODES), PAPER.curvature, Method().curvature
    (['ours', 'paper', 'replay', 'weight-prior'], False, True)
    >>> Method(labels=2)
    Traceback (most recent call last):
    ValueError: labels must be in 0..1, temperature above 0, tau not negative
    """

    memory: bool = True
    """The function-space term."""
    curvature: bool = True
    """Q: the curvature of the past that memory leaves out, where the state carries any."""
    gradient: bool = True
    """g*: what the base had not converged."""
    anchor: bool = True
    """The weight-space term and all that refers to w*; off: the new regularizer alone."""
    weighting: Weighting = Weighting.AUTO
    mixing: bool = True
    """Networks: mix memory inputs afresh in every step and let the old model label them."""
    temperature: float = 1.0
    """T of the soft labels, on both sides."""
    labels: float = 0.0
    """Share lambda of the true labels in the memory term (paper, Eq. 24)."""
    tau: float = 1.0
    """Factor of the weight-space term (paper, Eq. 6)."""

    def __post_init__(self) -> None:
        if not 0 <= self.labels <= 1 or not self.temperature > 0 or not self.tau >= 0:
            raise ValueError("labels must be in 0..1, temperature above 0, tau not negative")


OURS = Method()
PAPER = Method(curvature=False, gradient=False, weighting=Weighting.ONE, mixing=False)
"""mode="paper": v = 1, Q = 0, g* = 0, tau = 1; memory is chosen by h' (Select.CURVATURE)."""
REPLAY = Method(curvature=False, gradient=False, anchor=False, weighting=Weighting.ONE, mixing=False, labels=1.0)
WEIGHT_PRIOR = Method(memory=False)
"""The quadratic around w* with the GGN of all past data (paper, Sec. 4.1)."""


def distillation(temperature: float = 5.0, labels: float = 0.5) -> Method:
    """Knowledge distillation on the memory (paper, Eq. 27).

    Parameters
    ----------
    temperature
        T of the soft labels, on both sides.
    labels
        Share lambda of the true labels.

    Examples
    --------
    >>> from core.kprior import distillation
    >>> distillation(temperature=2.0).temperature, distillation().anchor
    (2.0, False)
    """
    return Method(
        curvature=False,
        gradient=False,
        anchor=False,
        weighting=Weighting.IMPORTANCE,
        mixing=False,
        temperature=temperature,
        labels=labels,
    )


MODES = {"ours": OURS, "paper": PAPER, "replay": REPLAY, "weight-prior": WEIGHT_PRIOR}
