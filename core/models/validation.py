"""Checks of a model's spec that concern several of its parts, and whether the engine can build the model."""

import torch

from core.errors import Invalid
from core.kprior import Predictor
from core.kprior.model.spec import Spec, column_names, default_loss, is_network, loss_of, values_of
from core.models.policy import Policy

OTHER_LOSSES = (("squared_hinge", "binary"), ("huber", "number"))
"""Losses that are not the default of any target, with their target."""


def build_shapes(spec: Spec) -> Predictor:
    """The predictor of a spec, without memory for its weights unless it is a plugin, which may need them."""
    device = "cpu" if spec["architecture"]["kind"] == "plugin" else "meta"
    with torch.device(device):
        return Predictor(spec, device=device)


def check_buildable(spec: Spec, max_parameters: int) -> None:
    """Raise Invalid if the engine cannot build the model or it has more weights than the settings allow."""
    check_loss(spec)
    try:
        size = build_shapes(spec).size
    except (ValueError, RuntimeError) as error:
        raise Invalid.at(("architecture",), "spec_invalid", str(error)) from error
    if size > max_parameters:
        message = f"the model would have {size} weights; AMEND_MAX_PARAMETERS allows {max_parameters}"
        raise Invalid.at(("architecture",), "model_too_large", message)
    check_regularizer(spec, size)


def check_loss(spec: Spec) -> None:
    """Raise Invalid if the loss does not suit the target or the architecture."""
    loss, target, default = loss_of(spec)["kind"], spec["target"]["kind"], default_loss(spec["target"])["kind"]
    if loss == default:
        return
    if (loss, target) not in OTHER_LOSSES:
        suitable = sorted({default, *(name for name, kind in OTHER_LOSSES if kind == target)})
        message = f"the loss {loss!r} does not suit a {target!r} target; use {' or '.join(suitable)}"
        raise Invalid.at(("loss",), "loss_unsuitable", message)
    if is_network(spec["architecture"]):
        message = f"{loss!r} is for linear and kernel models; set `loss` to {default!r} in the same request"
        raise Invalid.at(("loss",), "loss_unsuitable", message)


def check_class_weight(spec: Spec) -> None:
    """Raise Invalid if `class_weight` names classes that the target does not have."""
    weights, target = spec.get("class_weight"), spec["target"]
    if weights is None:
        return
    if target["kind"] not in ("binary", "classes"):
        message = f"a {target['kind']} target has no classes; give each example a `weight` instead"
        raise Invalid.at(("class_weight",), "class_weight_invalid", message)
    for label in sorted(weights.keys() - set(map(str, values_of(target)))):
        raise Invalid.at(("class_weight", label), "class_weight_invalid", "is not a class of the target")


def check_segments(policy: Policy, spec: Spec) -> None:
    """Raise Invalid if `policy.segments` names anything but category and boolean columns of the table."""
    columns = spec["input"]["columns"] if spec["input"]["kind"] == "table" else []
    usable = [column["name"] for column in columns if column["type"] in ("category", "boolean")]
    for i, name in enumerate(policy.segments):
        if name not in usable:
            message = "is not a category or boolean column of the model"
            raise Invalid.at(("policy", "segments", i), "policy_invalid", message)


def check_regularizer(spec: Spec, size: int) -> None:
    """Raise Invalid if the regularizer does not fit the model's columns or the number of its weights."""
    regularizer = spec["regularizer"]
    delta, columns, toward = regularizer["delta"], regularizer.get("columns"), regularizer.get("toward")
    if isinstance(delta, list) and len(delta) != size:
        message = f"must be one number or {size} numbers, one per weight"
        raise Invalid.at(("regularizer", "delta"), "spec_invalid", message)
    if toward is not None:
        check_toward(spec, toward, size)
    if columns is None:
        return
    if spec["architecture"]["kind"] != "linear" or spec["input"]["kind"] == "image":
        message = "only linear models of vectors and tables have one weight per column"
        raise Invalid.at(("regularizer", "columns"), "column_delta_unsupported", message)
    known = set(column_names(spec["input"]))
    for name in columns:
        if name not in known:
            raise Invalid.at(("regularizer", "columns", name), "column_unknown", "is not a column of the input")


def check_toward(spec: Spec, toward: list[float], size: int) -> None:
    """Raise Invalid if `toward` has the wrong length, or if the model's weights depend on units."""
    if len(toward) != size:
        message = f"{len(toward)} numbers were given; the model has {size} weights"
        raise Invalid.at(("regularizer", "toward"), "toward_mismatch", message)
    given, architecture = spec["input"], spec["architecture"]
    numbers = given["kind"] == "table" and any(column["type"] != "category" for column in given["columns"])
    if numbers and (architecture["kind"] != "linear" or architecture.get("degree", 1) > 1):
        message = "for a table with number columns, only linear models of degree 1 support `toward`"
        raise Invalid.at(("regularizer", "toward"), "toward_unsupported", message)
