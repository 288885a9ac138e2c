"""Whether a model can be built: what its spec alone does not tell."""

from __future__ import annotations

import torch

from core.errors import Invalid
from core.kprior import Predictor
from core.kprior.model.spec import Spec, column_names, default_loss, is_network, loss_of, values_of

OTHER_LOSSES = (("squared_hinge", "binary"), ("huber", "number"))
"""Losses that are no target's own, and the target of each."""


def build_shapes(spec: Spec) -> Predictor:
    """The predictor of a spec without memory for its weights; other people's networks may need the real thing."""
    device = "cpu" if spec["architecture"]["kind"] == "plugin" else "meta"
    with torch.device(device):
        return Predictor(spec, device=device)


def check_buildable(spec: Spec, max_parameters: int) -> None:
    """Invalid, if the engine could not build the model or its weights are more than an operator allows."""
    check_loss(spec)
    try:
        size = build_shapes(spec).size
    except (ValueError, RuntimeError) as error:
        raise Invalid.at(("architecture",), "spec_invalid", str(error)) from error
    if size > max_parameters:
        message = f"{size} weights; {max_parameters} are allowed here"
        raise Invalid.at(("architecture",), "model_too_large", message)
    check_regularizer(spec, size)


def check_loss(spec: Spec) -> None:
    """Invalid, if the loss is none of the target, or the architecture has no use for it."""
    loss, target = loss_of(spec)["kind"], spec["target"]["kind"]
    if loss == default_loss(spec["target"])["kind"]:
        return
    if (loss, target) not in OTHER_LOSSES:
        ours = sorted({default_loss(spec["target"])["kind"], *(name for name, kind in OTHER_LOSSES if kind == target)})
        message = f"{loss!r} is no loss of a target of kind {target!r}, which has {' and '.join(ours)}"
        raise Invalid.at(("loss",), "loss_unsuitable", message)
    if is_network(spec["architecture"]):
        own = default_loss(spec["target"])["kind"]
        message = f"{loss!r} is for linear models and kernels; a network has the loss of its target: "
        message += f"set `loss` to {own!r} in the same call"
        raise Invalid.at(("loss",), "loss_unsuitable", message)


def check_class_weight(spec: Spec) -> None:
    """Invalid, if classes have weights that the target has not."""
    given, target = spec.get("class_weight"), spec["target"]
    if given is None:
        return
    if target["kind"] not in ("binary", "classes"):
        message = f"the target is a {target['kind']}: only classes have weights, and each example its own"
        raise Invalid.at(("class_weight",), "class_weight_invalid", message)
    for label in sorted(given.keys() - set(map(str, values_of(target)))):
        raise Invalid.at(("class_weight", label), "class_weight_invalid", "is none of the target's classes")


def check_regularizer(spec: Spec, size: int) -> None:
    """Invalid, if the regularizer is that of another model: of other columns, or of more or fewer weights."""
    regularizer = spec["regularizer"]
    delta, columns, toward = regularizer["delta"], regularizer.get("columns"), regularizer.get("toward")
    if isinstance(delta, list) and len(delta) != size:
        message = f"must be one number or {size} of them, one for each weight"
        raise Invalid.at(("regularizer", "delta"), "spec_invalid", message)
    if toward is not None:
        check_toward(spec, toward, size)
    if columns is None:
        return
    if spec["architecture"]["kind"] != "linear" or spec["input"]["kind"] == "image":
        message = "only linear models of vectors and tables have weights that are a column's own"
        raise Invalid.at(("regularizer", "columns"), "column_delta_unsupported", message)
    known = set(column_names(spec["input"]))
    for name in columns:
        if name not in known:
            raise Invalid.at(("regularizer", "columns", name), "column_unknown", "the input has no such column")


def check_toward(spec: Spec, toward: list[float], size: int) -> None:
    """Invalid, if the weights toward which a model is drawn are not as many as its own, or depend on units."""
    if len(toward) != size:
        message = f"{len(toward)} numbers; this model has {size} weights"
        raise Invalid.at(("regularizer", "toward"), "toward_mismatch", message)
    described, architecture = spec["input"], spec["architecture"]
    numbers = described["kind"] == "table" and any(column["type"] != "category" for column in described["columns"])
    if numbers and (architecture["kind"] != "linear" or architecture.get("degree", 1) > 1):
        message = "where a table has numbers, only a linear model of degree 1 has weights that do not depend on units"
        raise Invalid.at(("regularizer", "toward"), "toward_unsupported", message)
