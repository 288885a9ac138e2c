"""A comparison on one page: an adapted version and a full retrain at the same position, all figures and pictures.

MLflow shows the page among the pictures of the retrain's run, and it goes with them: it counts rows of the holdout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from core.kprior.model.spec import Spec, loss_of
from core.tables.figures import ComparisonFigures
from core.tables.versions import Comparison, Version
from core.tracking import charts, descriptions
from core.tracking.descriptions import duration, figure, number, percent
from core.tracking.lineage import Lineage
from core.versions.privacy_rounding import coarse, coarse_pair

FILE = "comparison.html"
NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "loss": "loss",
    "calibration": "calibration error",
    "rmse": "root mean squared error",
    "r2": "R2",
}
LOSSES = {
    "log": "log loss",
    "squared": "loss (half the squared error)",
    "poisson": "half deviance",
    "squared_hinge": "squared hinge loss",
    "huber": "Huber loss",
}
TEMPLATES = Environment(
    loader=PackageLoader("core.tracking"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"duration": duration, "percent": percent, "figure": figure}


class Row(NamedTuple):
    """A figure of all that are compared; "" where there is none."""

    name: str
    adapted: str
    retrained: str
    frozen: str
    baseline: str


def render(comparison: Comparison, lineage: Lineage, spec: Spec) -> str | None:
    """The page of a comparison; None if one of its versions is gone. `lineage` ends with it."""
    adapted, retrained = (lineage.by_number.get(n) for n in (comparison.adapted, comparison.retrained))
    if adapted is None or retrained is None:
        return None
    figures = coarse_pair(comparison.figures, retrained.metrics)
    overview = [Markup(charts.svg(drawn)) for drawn in charts.overview(lineage).values()]
    sides = [charts.of_predictions(version, spec["target"]).values() for version in (adapted, retrained)]
    return TEMPLATES.get_template("comparison.html").render(
        model=lineage.model.name,
        comparison=comparison,
        figures=figures,
        versions={"adapted": adapted, "retrained": retrained},
        rows=rows_of(adapted, retrained, spec) + [differing(figures)],
        answer=descriptions.describe_comparison(lineage, comparison).replace("**", ""),
        saving=descriptions.describe_saving(lineage) or "",
        near=descriptions.describe_certificate(adapted) or "",
        rounded=descriptions.ROUNDED,
        overview=overview,
        pictures=[Markup(charts.svg(drawn)) for pair in zip(*sides, strict=False) for drawn in pair],
    )


def rows_of(adapted: Version, retrained: Version, spec: Spec) -> list[Row]:
    """The figures on the holdout, each with its standard error."""
    ours, theirs = coarse(adapted.metrics), coarse(retrained.metrics)
    frozen = coarse((adapted.evaluation or {}).get("frozen") or {})
    names = NAMES | {"loss": LOSSES[loss_of(spec)["kind"]]}
    return [
        Row(disagreement, show(ours, name), show(theirs, name), show(frozen, name), show(ours, f"baseline_{name}"))
        for name, disagreement in names.items()
        if name in ours or name in theirs
    ]


def differing(figures: ComparisonFigures) -> Row:
    """How far their predictions are apart."""
    apart, error = figures.get("disagreement"), figures.get("disagreement_se")
    disagreement = "" if apart is None else percent(apart) + (f" \u00b1 {percent(error)}" if error else "")
    return Row("predictions that differ", disagreement, "", "", "")


def show(metrics: Mapping[str, float], name: str) -> str:
    """A figure and its standard error."""
    value, error = metrics.get(name), metrics.get(f"{name}_se")
    if not number(value):
        return ""
    return f"{figure(value)} \u00b1 {error:.1g}" if number(error) and error else figure(value)
