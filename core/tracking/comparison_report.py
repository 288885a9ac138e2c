"""The comparison report: an adapted version and a full retrain at the same position, with all metrics and charts.

MLflow shows it among the charts of the retrain's run. It is deleted with them because it counts rows of the holdout.
"""

from collections.abc import Mapping
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.kprior.model.spec import Spec, loss_of
from core.tables.documents import ComparisonDocument
from core.tables.versions import Comparison, Version
from core.tracking import charts, descriptions
from core.tracking.formats import duration, figure, number, percent
from core.tracking.lineage import Lineage
from core.versions.privacy_rounding import coarse, coarse_pair

FILE = "comparison.html"
NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "average_precision": "average precision",
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
    """A metric of all compared models; "" if there is none."""

    name: str
    adapted: str
    retrained: str
    frozen: str
    baseline: str


def render(comparison: Comparison, lineage: Lineage, spec: Spec) -> str | None:
    """The report of a comparison; None if one of its versions no longer exists. `lineage` ends with it."""
    adapted, retrained = (lineage.by_number.get(n) for n in (comparison.adapted, comparison.retrained))
    if adapted is None or retrained is None:
        return None
    figures = coarse_pair(comparison.result, retrained.metrics)
    sides = [charts.of_predictions(version, spec["target"]).values() for version in (adapted, retrained)]
    return TEMPLATES.get_template("comparison.html").render(
        model=lineage.model.name,
        comparison=comparison,
        figures=figures,
        versions={"adapted": adapted, "retrained": retrained},
        rows=rows_of(adapted, retrained, spec) + [differing(figures)],
        answer=descriptions.describe_comparison(lineage, comparison).replace("**", ""),
        saving=descriptions.describe_saving(lineage),
        near=descriptions.describe_certificate(adapted),
        rounded=descriptions.ROUNDING,
        overview=list(charts.overview(lineage).values()),
        pictures=[drawn for pair in zip(*sides, strict=False) for drawn in pair],
    )


def rows_of(adapted: Version, retrained: Version, spec: Spec) -> list[Row]:
    """The holdout metrics, each with its standard error."""
    ours, theirs = coarse(adapted.metrics), coarse(retrained.metrics)
    frozen = coarse((adapted.evaluation or {}).get("frozen") or {})
    names = NAMES | {"loss": LOSSES[loss_of(spec)["kind"]]}
    return [
        Row(disagreement, show(ours, name), show(theirs, name), show(frozen, name), show(ours, f"baseline_{name}"))
        for name, disagreement in names.items()
        if name in ours or name in theirs
    ]


def differing(figures: ComparisonDocument) -> Row:
    """The fraction of predictions that differ."""
    apart, error = figures.get("disagreement"), figures.get("disagreement_se")
    disagreement = "" if apart is None else percent(apart) + (f" \u00b1 {percent(error)}" if error else "")
    return Row("predictions that differ", disagreement, "", "", "")


def show(metrics: Mapping[str, float], name: str) -> str:
    """A metric and its standard error."""
    value, error = metrics.get(name), metrics.get(f"{name}_se")
    if not number(value):
        return ""
    return f"{figure(value)} \u00b1 {error:.1g}" if number(error) and error else figure(value)
