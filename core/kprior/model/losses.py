"""Which family a target and a loss make: what of them suits each other."""

from __future__ import annotations

from .families import Bernoulli, Categorical, Family, Gaussian, Poisson
from .kinked import Huber, SquaredHinge
from .spec import Loss, Target, default_loss


def family_of(target: Target, loss: Loss | None = None) -> Family:
    """The family of a model's target, binary, classes, number or count, by its own loss or another that suits it.

    Raises
    ------
    ValueError
        If there is no such target, or the loss does not suit it.
    """
    own = default_loss(target)["kind"]
    name = own if loss is None else loss["kind"]
    if loss is not None and loss["kind"] == "huber" and target["kind"] == "number":
        return Huber(loss.get("threshold", 1.35))
    if name == "squared_hinge" and target["kind"] == "binary":
        return SquaredHinge()
    if name != own:
        raise ValueError(f"the loss {name!r} is none of a target of kind {target['kind']!r}")
    if target["kind"] == "binary":
        return Bernoulli()
    if target["kind"] == "classes":
        values = target.get("values")
        if not isinstance(values, (list, tuple)):
            raise ValueError("a target of kind 'classes' needs its 'values'")
        return Categorical(len(values))
    return Gaussian() if target["kind"] == "number" else Poisson()
