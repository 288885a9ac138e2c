"""Rounding metrics so coarsely that no single row can be inferred from them.

The exact metrics of two versions on holdouts that differ in one row reveal that row: loss times count of one version
minus loss times count of the other. A mean of n rows changes by at most its standard error (times n / (n - 1)) when any
one row is removed, because n times the standard error is the norm of the vector of deviations. So a grid of two
standard errors hides any row, and loses little that is statistically significant. A fraction changes by 1 / n, so steps
of four rows suffice. If rows have weights, the largest relative weight takes the place of 1 / n.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, cast, overload

from core.kprior.certificate.certificate import Certificate, LabelBound
from core.tables.documents import ComparisonDocument, SidesDocument, certificate_json, read_certificate

ERROR_SUFFIX = "_se"
Draw = Callable[[], float]
STEP_RATIO = 10 ** (1 / 3)
"""Mean ratio of neighbouring steps."""
ROWS, HEAVIEST = "rows", "heaviest"
Side = Literal["loss", "accuracy", "auc", "average_precision", "f1", "calibration", "rmse"]
SIDES: tuple[Side, ...] = ("loss", "accuracy", "auc", "average_precision", "f1", "calibration", "rmse")
"""Metrics in a comparison that both versions have."""
SMALLEST_STEP = 1e-12
ROW_AVERAGES = (
    "accuracy",
    "baseline_accuracy",
    "baseline_average_precision",
    "calibration",
    "coverage",
    "disagreement",
)
"""Metrics that one row can change by at most 1 / rows."""


def step_above(least: float) -> float:
    """The smallest number of the form 1, 2 or 5 times a power of ten that is not smaller than `least`.

    >>> step_above(0.013), step_above(0.2), step_above(7.0)
    (0.02, 0.2, 10.0)
    """
    power = math.floor(math.log10(least))
    steps = (float(f"{digit}e{power}") for digit in (1, 2, 5, 10))
    return next((step for step in steps if step >= least * (1 - 1e-9)), float(f"1e{power + 1}"))


def round_to_step(value: float, step: float, chance: float = 0.5) -> float:
    """The nearest multiple of a step; with a `chance` that is drawn uniformly from 0 to 1, one of the two neighbours,
    such that the mean is the value.

    >>> round_to_step(0.94251, 0.02), round_to_step(12.3, 5.0)
    (0.94, 10.0)
    >>> round_to_step(12.3, 5.0, chance=0.9)
    15.0
    """
    return float(f"{round(value / step + chance - 0.5) * step:.12g}")


def significant(value: float, digits: int) -> float:
    """
    >>> significant(0.012345, 2), significant(1234.5, 1)
    (0.012, 1000.0)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


@overload
def coarse(metrics: Mapping[str, float], draw: Draw | None = None) -> Mapping[str, float]: ...
@overload
def coarse(metrics: Mapping[str, float | None], draw: Draw | None = None) -> Mapping[str, float | None]: ...
def coarse(metrics: Mapping[str, float | None], draw: Draw | None = None) -> Mapping[str, float | None]:
    """Round the metrics of a version. Standard errors are rounded up, or computed from the rounded fraction.

    Whoever knows all other rows can compute which steps each value of the row would give, and a metric that crosses a
    step then decides between them. If `draw` is given, steps and directions are random, so that it only makes one of
    them a little more likely. This is for metrics that are rounded once: the mean of several roundings is the metric.

    Parameters
    ----------
    draw
        Draws a number from 0 to 1.

    Examples
    --------

    >>> coarse({"rows": 400, "accuracy": 0.9425, "accuracy_se": 0.0116, "loss": 0.1519, "loss_se": 0.0231})
    {'rows': 400, 'accuracy': 0.94, 'accuracy_se': 0.0119, 'loss': 0.15, 'loss_se': 0.05}
    >>> coarse({"rows": 400, "rmse": 0.52, "baseline_rmse": 1.04, "r2": 0.75})
    {'rows': 400, 'rmse': 0.52, 'baseline_rmse': 1.04, 'r2': 0.75}
    """
    share_of_one = metrics.get(HEAVIEST) or 1 / max(1, metrics.get(ROWS) or 1)
    rows = 1 / share_of_one
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        if name in ("r2", HEAVIEST) or (name.endswith(ERROR_SUFFIX) and name.removesuffix(ERROR_SUFFIX) in metrics):
            continue
        if name == ROWS or not isinstance(value, (int, float)) or not math.isfinite(value):
            found[name] = value
            continue
        error = metrics.get(f"{name}{ERROR_SUFFIX}") or 0.0
        if name.rpartition("/")[2] in ROW_AVERAGES:  # metrics of a label are named after it
            found[name] = share = min(1.0, round_to_step(value, 4 / rows, draw() if draw else 0.5))
            near = math.sqrt(max(share * (1 - share), 1 / rows) / rows)  # computed from the rounded fraction
        else:
            least = max(2 * error / max(0.5, 1 - share_of_one), 2 * abs(value) / rows, SMALLEST_STEP)
            step = step_above(least * STEP_RATIO ** (draw() - 0.5) if draw else least)
            found[name] = round_to_step(value, step, draw() if draw else 0.5)
            near = step / 2 if draw else step_above(max(error, SMALLEST_STEP))
        if f"{name}{ERROR_SUFFIX}" in metrics:
            found[f"{name}{ERROR_SUFFIX}"] = significant(near, 3)
    root, spread = found.get("rmse"), found.get("baseline_rmse")
    if "r2" in metrics and root is not None and spread:  # computed from rounded errors, it reveals no more than they do
        found["r2"] = significant(1 - (root / spread) ** 2, 3)
    return found


def sides_of(figures: ComparisonDocument) -> dict[str, SidesDocument]:
    """The metrics in a comparison that both versions have, by name."""
    return {name: figures[name] for name in SIDES if name in figures}


def coarse_pair(figures: ComparisonDocument, errors: Mapping[str, float]) -> ComparisonDocument:
    """Round a comparison of two versions, with grids from the standard errors of one of them."""
    rows: dict[str, float | None] = {ROWS: figures.get("rows"), HEAVIEST: figures.get("heaviest")}
    found: dict[str, object] = {**figures}
    for name, sides in sides_of(figures).items():
        given = {**rows, f"{name}{ERROR_SUFFIX}": errors.get(f"{name}{ERROR_SUFFIX}")}
        pair = {"adapted": sides["adapted"], "retrained": sides["retrained"]}
        found[name] = {side: coarse({**given, name: value})[name] for side, value in pair.items()}
    if figures.get("disagreement") is not None:
        apart = {"disagreement": figures["disagreement"], "disagreement_se": figures.get("disagreement_se")}
        found |= coarse(rows | apart)
    # the distance that a removal leaves: its first digit can already reveal which examples were removed
    found.pop("weight_distance", None)
    found.pop(HEAVIEST, None)
    return cast(ComparisonDocument, found)


def decade_above(value: float) -> float:
    """The next power of ten, but at least a thousandth.

    >>> decade_above(1.5e-5), decade_above(0.0042), decade_above(0.01)
    (0.001, 0.01, 0.01)
    """
    return float(f"1e{max(-3, math.ceil(math.log10(value) - 1e-9))}") if value > 0 else 1e-3


def coarse_certificate(certificate: Certificate | None) -> Certificate | None:
    """Round a certificate: a network's to two digits, a bound to its power of ten, relative to the weights.

    A bound is the distance to the optimum that a removal leaves: two digits of it suffice to find out by trial which
    examples were removed.

    >>> rounded = coarse_certificate(Certificate("bound", bound=5.9e-05, gradient_norm=9.5e-4, relative=1.5e-5))
    >>> rounded.relative, rounded.bound, rounded.gradient_norm
    (0.001, None, None)
    """
    if certificate is None:
        return None
    if certificate.kind == "bound":
        relative, prediction = certificate.relative, certificate.prediction_bound
        return Certificate(
            "bound",
            relative=None if relative is None else decade_above(relative),
            prediction_bound=None if prediction is None else decade_above(prediction),
            labels=coarse_labels(certificate.labels),
        )
    return read_certificate(round_all(certificate_json(certificate), 2))


def coarse_labels(labels: Mapping[str, LabelBound] | None) -> dict[str, LabelBound] | None:
    """The relative bounds of labels, rounded in the same way."""
    if labels is None:
        return None
    relative = {label: found.relative for label, found in labels.items()}
    return {
        label: LabelBound(None, None if value is None else decade_above(value)) for label, value in relative.items()
    }


def round_all(figures: Mapping[str, object], digits: int) -> dict[str, object]:
    """Round all numbers to a few digits, in nested objects as well."""
    found: dict[str, object] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found[name] = round_all(value, digits)
        else:
            found[name] = significant(value, digits) if isinstance(value, float) else value
    return found
