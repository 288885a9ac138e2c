"""The certificate: how far a model can be from the retrain that nobody ran.

A GLM whose Hessian fits has one without a pass over the data (`anchored_bound.py`); a pass over the retained data moves
its anchor, and gives a tighter one. Wide GLMs need a pass. For networks no bound exists: the residual is measured, and
no more is said.
"""

from dataclasses import dataclass

from core.kprior.certificate.audit import Audit


@dataclass(frozen=True)
class RemovalPromise:
    """The (epsilon, delta) guarantee of certified removal: it holds while the gradient is below the limit."""

    epsilon: float
    delta: float
    gradient_limit: float
    """Largest norm of the gradient for which the guarantee holds."""
    gradient_norm: float | None
    """Upper bound on the norm of the gradient at the version's weights."""


@dataclass(frozen=True)
class LabelBound:
    """How far the weights of one label can be from a full retrain."""

    bound: float | None
    """Upper bound on |w - w_retrain| for the weights of this label; null if there is none."""
    relative: float | None
    """bound / |w|, for the weights of this label."""


@dataclass(frozen=True)
class Certificate:
    """How far a version can be from a full retrain on the same data.

    Examples
    --------
    >>> from core.kprior import Certificate
    >>> certificate = Certificate("bound", gradient_norm=1e-3, passes=1, bound=0.02, relative=0.005)
    >>> certificate.meets(0.01), certificate.meets(0.001)
    (True, False)
    """

    kind: str
    """`bound` for linear and kernel models, `measured` for networks."""
    gradient_norm: float | None = None
    """Upper bound on the norm of the gradient of the training objective at the version's weights; null for networks."""
    passes: int = 0
    """Number of passes over the training examples that the certificate took."""
    bound: float | None = None
    """Upper bound on |w - w_retrain|; null for networks, and if the weights are too far away to bound it."""
    relative: float | None = None
    """bound / |w|."""
    prediction_bound: float | None = None
    """Upper bound on the change of any holdout prediction."""
    audit: Audit | None = None
    """Measurements of a network, for which no bound exists."""
    scope: str = "model"
    """`model`, or `head` for a model with a frozen encoder: the bound is on the distance to a retrain of the head, the
    linear model on the features of the same encoder."""
    removal: RemovalPromise | None = None
    """The guarantee of certified removal, for models that were created with it."""

    labels: dict[str, LabelBound] | None = None
    """The bound of each label of a `labels` target; null for other targets."""

    def meets(self, tolerance: float) -> bool:
        """Whether the relative bound is within a tolerance; never for a network, which has none."""
        return self.relative is not None and self.relative <= tolerance

    def is_within(self, gradient_limit: float | None) -> bool:
        """Whether the gradient is within the limit of certified removal, if there is one."""
        return gradient_limit is None or (self.gradient_norm is not None and self.gradient_norm <= gradient_limit)
