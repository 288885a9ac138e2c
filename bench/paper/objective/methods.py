"""The paper's K-prior and the methods that it is compared with, as settings of one objective."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Weighting(StrEnum):
    """How much each memory example counts in the objective.

    Examples
    --------
    >>> from bench.paper.objective.methods import Weighting
    >>> [rule.value for rule in Weighting]
    ['auto', 'one', 'importance', 'balanced']
    """

    AUTO = "auto"
    """`balanced` with a full curvature, `one` with another, `importance` with none."""
    ONE = "one"
    """One (the paper)."""
    IMPORTANCE = "importance"
    """The number of examples that it represents."""
    BALANCED = "balanced"
    """The largest fraction of its importance that leaves the curvature outside memory positive semi-definite."""


@dataclass(frozen=True)
class Method:
    """The switches of the K-prior objective. The defaults are those of `core.kprior`.

    Raises
    ------
    ValueError
        If labels are outside 0..1, the temperature is not positive, or tau is negative.

    Examples
    --------
    >>> from bench.paper.objective.methods import MODES, PAPER, Method
    >>> sorted(MODES), PAPER.curvature, Method().curvature
    (['ours', 'paper', 'replay', 'weight-prior'], False, True)
    >>> Method(labels=2)
    Traceback (most recent call last):
    ValueError: labels must be in 0..1, temperature above 0, tau not negative
    """

    memory: bool = True
    """The function-space term."""
    curvature: bool = True
    """Q: the curvature of past data outside memory, if the state carries it."""
    gradient: bool = True
    """g*: the gradient that remained when the training of the base stopped."""
    anchor: bool = True
    """The weight-space term and everything else that refers to w*; off: the new regularizer alone."""
    weighting: Weighting = Weighting.AUTO
    mixing: bool = True
    """Networks: in every step, mix the inputs in memory anew and label them with the old model."""
    temperature: float = 1.0
    """T of the soft labels, applied to both models."""
    labels: float = 0.0
    """Fraction lambda of the true labels in the memory term (paper, Eq. 24)."""
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
        T of the soft labels, applied to both models.
    labels
        Fraction lambda of the true labels.

    Examples
    --------
    >>> from bench.paper.objective.methods import distillation
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
