"""Reads a fitted estimator as layers of weights with ReLU between them, a target and a penalty."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.features import KERNEL, is_a, plain_value, require

SUPPORTED = (
    "LogisticRegression, LinearSVC, LinearRegression, Ridge, PoissonRegressor, MLPClassifier, MLPRegressor, a Pipeline "
    "that ends in one of them, and torch's Sequential of Linear and ReLU"
)
ALTERNATIVES = {
    "LogisticRegressionCV": "fit a LogisticRegression with the C that it found (C_) and import that",
    "RidgeCV": "fit a Ridge with the alpha that it found (alpha_) and import that",
    "BaseSearchCV": "import its best_estimator_",
    "RidgeClassifier": "fit a LogisticRegression",
    "SGDClassifier": "fit a LogisticRegression",
    "SGDRegressor": "fit a Ridge",
    "ElasticNet": "Amend has no l1 penalty; fit a Ridge",
    "KernelRidge": f"it needs all of its rows to predict; {KERNEL}",
    "GaussianProcessRegressor": f"it needs all of its rows to predict; {KERNEL}",
    "GaussianProcessClassifier": f"it needs all of its rows to predict; {KERNEL}",
    "SVC": "Amend supports only the squared hinge loss; fit a LinearSVC or a LogisticRegression",
    "SVR": "Amend has no epsilon-insensitive loss; fit a Ridge",
    "LinearSVR": "Amend has no epsilon-insensitive loss; fit a Ridge",
    "HuberRegressor": "it also fits a scale, so that its threshold changes with every example; create a "
    'model with the loss {"kind": "huber", "threshold": epsilon * scale_}',
}
"""Advice for estimators that are similar to a supported one. A Lasso is an ElasticNet."""
IGNORED_LAYERS = ("Flatten", "Dropout", "Identity")
"""Layers of torch that do not change predictions."""


@dataclass(frozen=True)
class Layer:
    """f = W z + b, penalised by delta/2 |W|^2."""

    weight: Any
    """(outputs, inputs)."""
    bias: Any
    """(outputs,)."""
    delta: float


@dataclass(frozen=True)
class Fitted:
    """An estimator without its pipeline."""

    layers: list[Layer]
    target: Mapping[str, Any]
    linear: bool
    penalize_bias: bool = False
    class_weight: Mapping[str, float] | None = None
    loss: str | None = None
    """None: the default of the target."""


def read_estimator(estimator: Any, target: Mapping[str, Any] | None, rows: int, total: float) -> Fitted:
    """The weights of a fitted estimator. Raises EstimatorUnsupported, with the reason, if it cannot be imported."""
    if is_a(estimator, "Sequential"):
        return read_sequential(estimator, target)
    for kind, instead in ALTERNATIVES.items():
        if is_a(estimator, kind):
            raise EstimatorUnsupported(f"A {type(estimator).__name__} cannot be imported. Advice: {instead}.")
    require(
        is_a(estimator, "LogisticRegression", "LinearSVC", "LinearRegression", "Ridge", "PoissonRegressor", *MLPS),
        f"A {type(estimator).__name__} cannot be imported. Supported: {SUPPORTED}.",
    )
    require(hasattr(estimator, "coef_") or hasattr(estimator, "coefs_"), "The estimator is not fitted.")
    return read_network(estimator, rows) if is_a(estimator, *MLPS) else read_linear(estimator, total)


MLPS = ("MLPClassifier", "MLPRegressor")


def read_linear(estimator: Any, total: float) -> Fitted:
    import numpy as np

    require(
        bool(estimator.fit_intercept), "An estimator without an intercept cannot be imported. Use fit_intercept=True."
    )
    require(not getattr(estimator, "positive", False), "An estimator with positive=True cannot be imported.")
    weight = np.atleast_2d(np.asarray(estimator.coef_, np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(weight))
    if is_a(estimator, "LinearSVC"):
        return read_linear_svc(estimator, Layer(weight, bias, 1 / float(estimator.C)))
    if is_a(estimator, "LogisticRegression"):
        layer, target = to_classes(Layer(weight, bias, logistic_delta(estimator)), estimator.classes_)
        penalize_bias = estimator.solver == "liblinear"
        require(
            not penalize_bias or estimator.intercept_scaling == 1,
            "A liblinear fit with intercept_scaling other than 1 cannot be imported. Use 1, or another solver.",
        )
        return Fitted([layer], target, True, penalize_bias, class_weights(estimator, target))
    require(len(weight) == 1, "An estimator of several targets cannot be imported.")
    if is_a(estimator, "PoissonRegressor"):  # its loss is a mean, Amend's a sum
        return Fitted([Layer(weight, bias, float(estimator.alpha) * total)], {"kind": "count"}, True)
    alpha = getattr(estimator, "alpha", 0.0)
    require(np.ndim(alpha) == 0, "A Ridge with several alphas cannot be imported.")
    return Fitted([Layer(weight, bias, float(alpha))], {"kind": "number"}, True)


def read_linear_svc(estimator: Any, layer: Layer) -> Fitted:
    """It minimises C times the sum of squared hinge losses plus |w|^2 / 2, intercept included: delta is 1 / C."""
    require(estimator.loss == "squared_hinge", "A LinearSVC with loss='hinge' cannot be imported. Use 'squared_hinge'.")
    require(
        estimator.multi_class == "ovr",  # a different problem, even with two classes
        "A LinearSVC with multi_class='crammer_singer' cannot be imported, because its objective differs. Use 'ovr'.",
    )
    require(estimator.penalty == "l2", "A model with an l1 penalty cannot be imported. Use l2.")
    advice = "Label them 0 and 1, or fit a LogisticRegression."
    target: Mapping[str, Any] = {"kind": "binary"}
    require(
        list(estimator.classes_) == [0, 1], f"A LinearSVC with classes other than 0 and 1 cannot be imported. {advice}"
    )
    require(estimator.intercept_scaling == 1, "A LinearSVC with intercept_scaling other than 1 cannot be imported.")
    return Fitted([layer], target, True, True, class_weights(estimator, target), "squared_hinge")


def class_weights(estimator: Any, target: Mapping[str, Any]) -> Mapping[str, float] | None:
    """The weights of the classes in the fit, by name; None if all are equal."""
    given = estimator.class_weight
    if given is None:
        return None
    advice = "Use numbers: class_weight={label: weight}."
    require(isinstance(given, Mapping), f"class_weight={given!r} would change with every example. {advice}")
    labels = zip(target.get("values", [0, 1]), estimator.classes_.tolist(), strict=True)
    return {str(label): float(given.get(own, 1.0)) for label, own in labels}


def logistic_delta(estimator: Any) -> float:
    """C is the weight of the losses, delta that of the penalty."""
    mixed = estimator.l1_ratio not in (None, 0, 0.0) or getattr(estimator, "penalty", None) in ("l1", "elasticnet")
    require(not mixed, "A model with an l1 penalty cannot be imported. Use l2 or no penalty.")
    free = getattr(estimator, "penalty", "l2") is None or math.isinf(estimator.C)
    return 0.0 if free else 1 / float(estimator.C)


def read_network(estimator: Any, rows: int) -> Fitted:
    import numpy as np

    require(
        estimator.activation == "relu" or len(estimator.coefs_) == 1,
        f"A network with the activation {estimator.activation!r} cannot be imported. Use relu.",
    )
    # scikit-learn adds alpha/2 |W|^2 / (rows of a batch) to the mean loss.
    batch = rows if estimator.solver == "lbfgs" else min(200, rows) if estimator.batch_size == "auto" else None
    delta = float(estimator.alpha) * rows / max(1, batch or min(int(estimator.batch_size), rows))
    layers = [
        Layer(np.asarray(w, np.float64).T, np.asarray(b, np.float64), delta)
        for w, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    target: Mapping[str, Any] = {"kind": "number"}
    if is_a(estimator, "MLPClassifier"):
        several = estimator.out_activation_ == "logistic" and estimator.n_outputs_ > 1
        require(not several, "A multi-label classifier cannot be imported.")
        layers[-1], target = to_classes(layers[-1], estimator.classes_)
    else:
        require(estimator.n_outputs_ == 1, "An estimator of several targets cannot be imported.")
        if estimator.out_activation_ == "exp":
            target = {"kind": "count"}
    return Fitted(layers, target, len(layers) == 1)


def read_sequential(module: Any, target: Mapping[str, Any] | None) -> Fitted:
    import numpy as np

    require(target is not None, "A torch module does not tell what it predicts. Pass outputs={'kind': ...}.")
    assert target is not None
    kinds = {"binary": ("Sigmoid",), "classes": ("Softmax", "LogSoftmax")}.get(target["kind"], ())
    parts = [part for part in module if not is_a(part, *IGNORED_LAYERS)]
    if parts and is_a(parts[-1], *kinds):
        parts = parts[:-1]
    wanted = ["Linear", "ReLU"] * (len(parts) // 2) + ["Linear"]
    for i, part in enumerate(parts):
        known = i < len(wanted) and len(parts) % 2 == 1 and is_a(part, wanted[i])
        require(
            known, f"Cannot import layer {i}, a {type(part).__name__}. Alternate Linear and ReLU, and end with Linear."
        )
    require(bool(parts), "The module has no layers.")

    def numbers(tensor: Any) -> Any:
        return tensor.detach().cpu().double().numpy()

    layers = []
    for part in parts[::2]:
        bias = np.zeros(part.out_features) if part.bias is None else numbers(part.bias)
        layers.append(Layer(numbers(part.weight), bias, 1.0))
    outputs = len(target["values"]) if target["kind"] == "classes" else 1
    found = len(layers[-1].bias)
    require(found == outputs, f"The module has {found} outputs, but the target needs {outputs}.")
    return Fitted(layers, target, len(layers) == 1)


def to_classes(last: Layer, classes: Any) -> tuple[Layer, Mapping[str, Any]]:
    """The target of a classifier and its last layer, with one output for the classes 0 and 1, else one per class."""
    import numpy as np

    values = [value.item() if hasattr(value, "item") else value for value in classes]
    if len(values) == 2 and values == [0, 1]:  # also True and False
        return last, {"kind": "binary"}
    target = {"kind": "classes", "values": [plain_value(value) for value in values]}
    if len(last.weight) > 1:
        return last, target
    # A logit f equals a softmax of -f/2 and f/2, whose weights are half as long: the penalty needs twice the delta.
    weight, bias = np.concatenate([-last.weight, last.weight]) / 2, np.concatenate([-last.bias, last.bias]) / 2
    return Layer(weight, bias, 2 * last.delta), target
