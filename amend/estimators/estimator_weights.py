"""Reads a fitted estimator as layers of weights with ReLU between them, a target and a penalty."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import KERNEL, is_a, name_of, plain_value, require
from amend.estimators.torch_modules import implied_activations, walk

SUPPORTED = (
    "LogisticRegression, LogisticRegressionCV, SGDClassifier, LinearSVC, RidgeClassifier, LinearRegression, Ridge, "
    "RidgeCV, PoissonRegressor, MLPClassifier, MLPRegressor, a Pipeline or a search that ends in one of them, "
    "torch's Sequential, and tree ensembles of LightGBM, XGBoost and scikit-learn"
)
ALTERNATIVES = {
    "CalibratedClassifierCV": "import the estimator that it calibrates, fitted on all rows; a LogisticRegression is "
    "calibrated by its own loss",
    "BaseEnsemble": "fit a HistGradientBoostingClassifier, a LightGBM or an XGBoost model, or a LogisticRegression on "
    "SplineTransformer features",
    "BaseDecisionTree": "fit a boosted ensemble, or a LogisticRegression on KBinsDiscretizer features",
    "_BaseNB": "fit a LogisticRegression",
    "KNeighborsMixin": f"it needs all of its rows to predict; {KERNEL}",
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

    def of_target(self, target: Mapping[str, Any]) -> "Fitted":
        return replace(self, target=target)


LOGS = {("log", "exp"): "log", ("log1p", "expm1"): "log1p"}
"""Transformations of targets, by the names of NumPy's function and of its inverse."""


def unwrap(estimator: Any) -> tuple[Any, str | None]:
    """The estimator that a search or a transformed target contains, and how the target is transformed."""
    if is_a(estimator, "BaseSearchCV"):
        require(hasattr(estimator, "best_estimator_"), "The search is not fitted, or refit=False. Import the best fit.")
        return unwrap(estimator.best_estimator_)
    if is_a(estimator, "Pipeline") and is_a(estimator.steps[-1][1], "BaseSearchCV", "TransformedTargetRegressor"):
        last, log = unwrap(estimator.steps[-1][1])
        return type(estimator)([*estimator.steps[:-1], (estimator.steps[-1][0], last)]), log
    if not is_a(estimator, "TransformedTargetRegressor"):
        return estimator, None
    names = tuple(getattr(f, "__name__", None) for f in (estimator.func, estimator.inverse_func))
    log = LOGS.get(names)  # type: ignore[arg-type]
    require(
        log is not None and estimator.transformer is None,
        "Of transformed targets, only np.log with np.exp as its inverse, and np.log1p with np.expm1, can be imported.",
    )
    return unwrap(estimator.regressor_)[0], log


def read_estimator(estimator: Any, target: Mapping[str, Any] | None, inputs: Inputs) -> Fitted:
    """The weights of a fitted estimator. Raises EstimatorUnsupported, with the reason, if it cannot be imported."""
    if is_a(estimator, "Sequential"):
        return read_sequential(estimator, target)
    for kind, instead in ALTERNATIVES.items():
        if is_a(estimator, kind):
            raise EstimatorUnsupported(f"{name_of(estimator)} cannot be imported. {instead[0].upper()}{instead[1:]}.")
    require(is_a(estimator, *LINEAR, *MLPS), f"{name_of(estimator)} cannot be imported. Supported: {SUPPORTED}.")
    require(hasattr(estimator, "coef_") or hasattr(estimator, "coefs_"), "The estimator is not fitted.")
    return read_network(estimator, inputs.rows) if is_a(estimator, *MLPS) else read_linear(estimator, inputs)


MLPS = ("MLPClassifier", "MLPRegressor")
RIDGE_CLASSIFIERS = ("RidgeClassifier", "RidgeClassifierCV")
LINEAR = (
    *("LogisticRegression", "LogisticRegressionCV", "SGDClassifier", "LinearSVC", *RIDGE_CLASSIFIERS),
    *("LinearRegression", "Ridge", "RidgeCV", "PoissonRegressor"),
)


def read_linear(estimator: Any, inputs: Inputs) -> Fitted:
    import numpy as np

    require(
        bool(estimator.fit_intercept), "An estimator without an intercept cannot be imported. Use fit_intercept=True."
    )
    require(not getattr(estimator, "positive", False), "An estimator with positive=True cannot be imported.")
    weight = np.atleast_2d(np.asarray(estimator.coef_, np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(weight))
    if is_a(estimator, "LinearSVC"):
        return read_linear_svc(estimator, Layer(weight, bias, 1 / float(estimator.C)), inputs)
    if is_a(estimator, *RIDGE_CLASSIFIERS):
        return read_ridge_classifier(estimator, weight, bias, inputs)
    if is_a(estimator, "SGDClassifier"):
        return read_sgd(estimator, weight, bias, inputs)
    if is_a(estimator, "LogisticRegression"):
        layer, target = to_classes(Layer(weight, bias, logistic_delta(estimator)), estimator.classes_)
        penalize_bias = estimator.solver == "liblinear"
        require(
            not penalize_bias or estimator.intercept_scaling == 1,
            "A liblinear fit with intercept_scaling other than 1 cannot be imported. Use 1, or another solver.",
        )
        return Fitted([layer], target, True, penalize_bias, class_weights(estimator, target, inputs))
    require(len(weight) == 1, "An estimator of several targets cannot be imported. Fit one for each target.")
    if is_a(estimator, "PoissonRegressor"):  # its loss is a mean, Amend's a sum
        return Fitted([Layer(weight, bias, float(estimator.alpha) * inputs.total)], {"kind": "count"}, True)
    alpha = getattr(estimator, "alpha_", getattr(estimator, "alpha", 0.0))
    require(np.ndim(alpha) == 0, "A Ridge with several alphas cannot be imported.")
    return Fitted([Layer(weight, bias, float(alpha))], {"kind": "number"}, True)


def read_ridge_classifier(estimator: Any, weight: Any, bias: Any, inputs: Inputs) -> Fitted:
    """It fits f to -1 and 1. (f + 1) / 2 is the fit to 0 and 1, with the same alpha."""
    require(
        len(estimator.classes_) == 2 and list(estimator.classes_) == [0, 1],
        "A RidgeClassifier with classes other than 0 and 1 cannot be imported. Label them 0 and 1, or fit a "
        "LogisticRegression.",
    )
    alpha = estimator.alpha_ if hasattr(estimator, "alpha_") else estimator.alpha
    layer, target = Layer(weight / 2, (bias + 1) / 2, float(alpha)), {"kind": "binary"}
    return Fitted([layer], target, True, False, class_weights(estimator, target, inputs), "squared")


def read_sgd(estimator: Any, weight: Any, bias: Any, inputs: Inputs) -> Fitted:
    """Its loss is a mean and Amend's a sum, so alpha is multiplied by the number of rows."""
    require(
        estimator.loss == "log_loss",
        f"An SGDClassifier with loss={estimator.loss!r} cannot be imported. Use loss='log_loss', or fit a LinearSVC.",
    )
    require(estimator.penalty == "l2", "An SGDClassifier without an l2 penalty cannot be imported. Use penalty='l2'.")
    require(
        len(estimator.classes_) == 2,
        "An SGDClassifier with more than two classes cannot be imported, because it fits each class against the rest. "
        "Fit a LogisticRegression.",
    )
    layer, target = to_classes(Layer(weight, bias, float(estimator.alpha) * inputs.total), estimator.classes_)
    return Fitted([layer], target, True, False, class_weights(estimator, target, inputs))


def read_linear_svc(estimator: Any, layer: Layer, inputs: Inputs) -> Fitted:
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
    return Fitted([layer], target, True, True, class_weights(estimator, target, inputs), "squared_hinge")


def class_weights(estimator: Any, target: Mapping[str, Any], inputs: Inputs) -> Mapping[str, float] | None:
    """The weights of the classes in the fit, by name; None if all are equal. Balanced weights stay as they are."""
    given = estimator.class_weight
    if given is None:
        return None
    if given == "balanced":
        counts = inputs.count_classes(estimator.classes_, weighted=not is_a(estimator, "SGDClassifier"))
        require(min(counts) > 0, "class_weight='balanced' needs the rows that the estimator was fitted on.")
        given = {c: sum(counts) / (len(counts) * n) for c, n in zip(estimator.classes_.tolist(), counts, strict=True)}
    labels = zip(target.get("values", [0, 1]), estimator.classes_.tolist(), strict=True)
    return {str(label): float(given.get(own, 1.0)) for label, own in labels}


def logistic_delta(estimator: Any) -> float:
    """C is the weight of the losses, delta that of the penalty."""
    ratios = getattr(estimator, "l1_ratio_", getattr(estimator, "l1_ratio", None))
    mixed = has_l1(ratios) or getattr(estimator, "penalty", None) in ("l1", "elasticnet")
    require(not mixed, "A model with an l1 penalty cannot be imported. Use l2 or no penalty.")
    if is_a(estimator, "LogisticRegressionCV"):
        return 1 / chosen_c(estimator)
    free = getattr(estimator, "penalty", "l2") is None or math.isinf(estimator.C)
    return 0.0 if free else 1 / float(estimator.C)


def has_l1(ratios: Any) -> bool:
    """Whether any ratio of the l1 penalty is above 0; None is none."""
    import numpy as np

    return any(ratio not in (None, 0) for ratio in np.atleast_1d(ratios).tolist())


def chosen_c(estimator: Any) -> float:
    """The C that cross-validation chose."""
    import numpy as np

    found = np.unique(np.atleast_1d(estimator.C_))
    require(len(found) == 1, "A LogisticRegressionCV with a different C for each class cannot be imported.")
    return float(found[0])


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
        require(
            estimator.n_outputs_ == 1, "An estimator of several targets cannot be imported. Fit one for each target."
        )
        if estimator.out_activation_ == "exp":
            target = {"kind": "count"}
    return Fitted(layers, target, len(layers) == 1)


def read_sequential(module: Any, target: Mapping[str, Any] | None) -> Fitted:
    import numpy as np

    assert target is not None
    parts = [part for _, part in walk(module) if not is_a(part, *IGNORED_LAYERS)]
    if is_a(parts[-1], *implied_activations(target)):
        parts = parts[:-1]
    require(is_a(parts[-1], "Linear"), f"The last layer, a {type(parts[-1]).__name__}, does not fit the target.")

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
