"""The family that a target and a loss determine, and which of them fit together."""

from .families import Bernoulli, Categorical, Family, Gaussian, Labels, LinearProbability, Poisson
from .kinked_losses import Huber, SquaredHinge
from .spec import Loss, Target, default_loss


def family_of(target: Target, loss: Loss | None = None) -> Family:
    """The family of a target (binary, classes, labels, number or count) with its default loss or another that fits it.

    Raises
    ------
    ValueError
        If the target is unknown, or the loss does not fit it.
    """
    own = default_loss(target)["kind"]
    name = own if loss is None else loss["kind"]
    if loss is not None and loss["kind"] == "huber" and target["kind"] == "number":
        return Huber(loss.get("threshold", 1.35))
    if name == "squared_hinge" and target["kind"] == "binary":
        return SquaredHinge()
    if name == "squared" and target["kind"] == "binary":
        return LinearProbability()
    if name != own:
        raise ValueError(f"The loss {name!r} does not fit a target of kind {target['kind']!r}.")
    if target["kind"] == "binary":
        return Bernoulli()
    if target["kind"] == "classes" or target["kind"] == "labels":
        values = target.get("values")
        if not isinstance(values, (list, tuple)):
            raise ValueError(f"A target of kind {target['kind']!r} needs 'values'.")
        return Categorical(len(values)) if target["kind"] == "classes" else Labels(len(values))
    return Gaussian() if target["kind"] == "number" else Poisson()
