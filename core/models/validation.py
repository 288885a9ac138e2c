"""Checks of a model's spec that concern several of its parts, and whether the engine can build the model."""

from collections.abc import Collection, Sequence
from typing import get_args

import torch

from core.errors import Invalid, Location
from core.kprior import Predictor
from core.kprior.model.spec import Spec, column_names, default_loss, frozen_encoder, is_network, loss_of, values_of
from core.models.policy import GatePolicy, Policy

OTHER_LOSSES = (("squared_hinge", "binary"), ("squared", "binary"), ("huber", "number"))
"""Losses that are not the default of any target, with their target."""
OF_CLASSES = ("loss", "log_loss", "accuracy", "balanced_accuracy", "f1", "brier", "calibration")
OF_NUMBERS = ("loss", "rmse", "mae", "r2")
METRICS = {
    "binary": (*OF_CLASSES, "auc", "average_precision", "recall_at_precision"),
    "classes": OF_CLASSES,
    "number": OF_NUMBERS,
    "count": OF_NUMBERS,
    "labels": (
        *("loss", "log_loss", "accuracy", "auc", "average_precision", "f1", "brier", "calibration"),
        "recall_at_precision",
    ),
}
"""By target: the metrics that a policy can name."""


def build_shapes(spec: Spec) -> Predictor:
    """The predictor of a spec, without memory for its weights unless it is a plugin, which may need them."""
    device = "cpu" if spec["architecture"]["kind"] == "plugin" else "meta"
    with torch.device(device):
        return Predictor(spec, device=device)


def check_buildable(spec: Spec, max_parameters: int) -> None:
    """Raise Invalid if the engine cannot build the model or it has more weights than the settings allow."""
    check_loss(spec)
    if spec["target"]["kind"] == "labels" and spec["architecture"]["kind"] not in ("linear", "kernel"):
        message = "a target of kind 'labels' requires a linear or kernel model"
        raise Invalid.at(("architecture",), "spec_invalid", message)
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


def check_policy(policy: Policy, spec: Spec, given: Collection[str]) -> None:
    """Raise Invalid if one of the given fields of a policy does not fit the model's columns or its target."""
    target = spec["target"]["kind"]
    if "segments" in given:
        check_segments(policy, spec)
    if "headline" in given and policy.headline is not None:
        check_metric(("policy", "headline"), policy.headline, target, METRICS[target])
    needs_precision = policy.headline == "recall_at_precision" and policy.recall_at_precision is None
    if needs_precision and not {"headline", "recall_at_precision"}.isdisjoint(given):
        message = "`recall_at_precision` is computed only if `policy.recall_at_precision` names a precision"
        raise Invalid.at(("policy", "headline"), "policy_invalid", message)
    if "gate" in given:
        compared = get_args(GatePolicy.model_fields["metric"].annotation)
        suitable = [metric for metric in METRICS[target] if metric in compared]
        check_metric(("policy", "gate", "metric"), policy.gate.metric, target, suitable)
    for name, default in (("threshold", 0.5), ("recall_at_precision", None)):
        if name in given and target not in ("binary", "labels") and getattr(policy, name) != default:
            raise Invalid.at(
                ("policy", name), "policy_invalid", f"applies to binary targets and labels, not to a {target!r} target"
            )


def check_metric(location: Location, metric: str, target: str, suitable: Sequence[str]) -> None:
    """Raise Invalid if a metric does not suit the target."""
    if metric not in suitable:
        message = f"{metric!r} is not a metric of a {target!r} target; use one of {', '.join(suitable)}"
        raise Invalid.at(location, "policy_invalid", message)


def check_segments(policy: Policy, spec: Spec) -> None:
    """Raise Invalid if `policy.segments` names anything but category and boolean columns of the table."""
    columns = spec["input"]["columns"] if spec["input"]["kind"] == "table" and not frozen_encoder(spec) else []
    usable = [column["name"] for column in columns if column["type"] in ("category", "boolean")]
    for i, name in enumerate(policy.segments):
        if name not in usable:
            message = "is not a category or boolean column of the model"
            raise Invalid.at(("policy", "segments", i), "policy_invalid", message)
        if name in policy.segments[:i]:
            raise Invalid.at(("policy", "segments", i), "policy_invalid", "is named twice")


def check_regularizer(spec: Spec, size: int) -> None:
    """Raise Invalid if the regularizer does not fit the model's columns or the number of its weights."""
    regularizer = spec["regularizer"]
    delta, columns, toward = regularizer["delta"], regularizer.get("columns"), regularizer.get("toward")
    if delta == "auto" and spec["architecture"]["kind"] != "trees":
        message = "only trees choose it in training; give a number in the same request"
        raise Invalid.at(("regularizer", "delta"), "spec_invalid", message)
    if isinstance(delta, list) and len(delta) != size:
        message = f"must be one number or {size} numbers, one per weight"
        raise Invalid.at(("regularizer", "delta"), "spec_invalid", message)
    if toward is not None:
        check_toward(spec, toward, size)
    if columns is None:
        return
    if spec["architecture"]["kind"] != "linear" or spec["input"]["kind"] == "image" or frozen_encoder(spec):
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
    if numbers and not frozen_encoder(spec) and (architecture["kind"] != "linear" or architecture.get("degree", 1) > 1):
        message = "for a table with number columns, only linear models of degree 1 support `toward`"
        raise Invalid.at(("regularizer", "toward"), "toward_unsupported", message)
