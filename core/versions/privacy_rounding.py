"""Figures as coarse as it takes that nobody can tell a single row from them.

Two versions' figures on holdouts that differ in one row tell that row: loss times count of the one, less loss times
count of the other. A mean of n rows moves by at most its standard error (times n / (n - 1)) when one of them goes,
whichever it is, since n times the standard error is the length of the vector of deviations. So a grid of two standard
errors hides any row, and little is lost that the rows could prove. A share moves by 1 / n: steps of four rows will do.
Where rows have weights, the share of the heaviest stands in the place of 1 / n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, cast, overload

from core.tables.figures import CertificateFigures, ComparisonFigures, SideFigures

ERROR_SUFFIX = "_se"
ROWS, HEAVIEST = "rows", "heaviest"
Side = Literal["loss", "accuracy", "auc", "f1", "calibration", "rmse"]
SIDES: tuple[Side, ...] = ("loss", "accuracy", "auc", "f1", "calibration", "rmse")
"""Figures of a comparison that both versions have."""
SMALLEST_STEP = 1e-12
ROW_AVERAGES = ("accuracy", "baseline_accuracy", "calibration", "coverage", "disagreement")
"""Metrics that one row can change by 1 / rows at the most."""


def step_above(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not smaller.

    >>> step_above(0.013), step_above(0.2), step_above(7.0)
    (0.02, 0.2, 10.0)
    """
    power = math.floor(math.log10(least))
    steps = (float(f"{digit}e{power}") for digit in (1, 2, 5, 10))
    return next((step for step in steps if step >= least * (1 - 1e-9)), float(f"1e{power + 1}"))


def round_to_step(value: float, step: float) -> float:
    """
    >>> round_to_step(0.94251, 0.02), round_to_step(12.3, 5.0)
    (0.94, 10.0)
    """
    return float(f"{round(value / step) * step:.12g}")


def significant(value: float, digits: int) -> float:
    """
    >>> significant(0.012345, 2), significant(1234.5, 1)
    (0.012, 1000.0)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


@overload
def coarse(metrics: Mapping[str, float]) -> Mapping[str, float]: ...
@overload
def coarse(metrics: Mapping[str, float | None]) -> Mapping[str, float | None]: ...
def coarse(metrics: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Metrics of a version on such grids; standard errors are rounded up, or follow from the rounded share.

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
        if name in ROW_AVERAGES:
            found[name] = share = min(1.0, round_to_step(value, 4 / rows))
            near = math.sqrt(max(share * (1 - share), 1 / rows) / rows)  # what the rounded share makes of it
        else:
            found[name] = round_to_step(
                value, step_above(max(2 * error / max(0.5, 1 - share_of_one), 2 * abs(value) / rows, SMALLEST_STEP))
            )
            near = step_above(max(error, SMALLEST_STEP))
        if f"{name}{ERROR_SUFFIX}" in metrics:
            found[f"{name}{ERROR_SUFFIX}"] = significant(near, 3)
    root, spread = found.get("rmse"), found.get("baseline_rmse")
    if "r2" in metrics and root is not None and spread:  # what the rounded errors make of it tells no more than they
        found["r2"] = significant(1 - (root / spread) ** 2, 3)
    return found


def sides_of(figures: ComparisonFigures) -> dict[str, SideFigures]:
    """The figures of a comparison that both versions have, by name."""
    return {name: figures[name] for name in SIDES if name in figures}


def coarse_pair(figures: ComparisonFigures, errors: Mapping[str, float]) -> ComparisonFigures:
    """The same for a comparison of two versions, on grids that the standard errors of one of them make."""
    rows: dict[str, float | None] = {ROWS: figures.get("rows"), HEAVIEST: figures.get("heaviest")}
    found: dict[str, object] = {**figures}
    for name, sides in sides_of(figures).items():
        given = {**rows, f"{name}{ERROR_SUFFIX}": errors.get(f"{name}{ERROR_SUFFIX}")}
        pair = {"adapted": sides["adapted"], "retrained": sides["retrained"]}
        found[name] = {side: coarse({**given, name: value})[name] for side, value in pair.items()}
    if figures.get("disagreement") is not None:
        apart = {"disagreement": figures["disagreement"], "disagreement_se": figures.get("disagreement_se")}
        found |= coarse(rows | apart)
    # what a removal has left of the way: its first digit already tells which examples went
    found.pop("weight_distance", None)
    found.pop(HEAVIEST, None)
    return cast(ComparisonFigures, found)


def decade_above(value: float) -> float:
    """The next power of ten, and no less than a thousandth.

    >>> decade_above(1.5e-5), decade_above(0.0042), decade_above(0.01)
    (0.001, 0.01, 0.01)
    """
    return float(f"1e{max(-3, math.ceil(math.log10(value) - 1e-9))}") if value > 0 else 1e-3


def coarse_certificate(certificate: CertificateFigures | None, digits: int = 2) -> CertificateFigures:
    """A network's certificate to few digits; of a bound only its decade, as a share of the weights.

    A bound is what a removal has left of the way to the optimum: two digits of it are enough to tell by trial which
    examples went.

    >>> coarse_certificate({"kind": "bound", "bound": 5.9e-05, "gradient_norm": 9.5e-4, "relative": 1.5e-5})
    {'kind': 'bound', 'relative': 0.001}
    """
    given = certificate or CertificateFigures()
    if given.get("kind") == "bound":
        shares = {"relative": given.get("relative"), "prediction_bound": given.get("prediction_bound")}
        decades = {name: decade_above(value) for name, value in shares.items() if value is not None}
        return cast(CertificateFigures, {"kind": "bound", **decades})
    return cast(CertificateFigures, round_all(given, digits))


def round_all(figures: Mapping[str, object], digits: int) -> dict[str, object]:
    """Figures, and those in them, to few digits."""
    found: dict[str, object] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found[name] = round_all(value, digits)
        else:
            found[name] = significant(value, digits) if isinstance(value, float) else value
    return found
