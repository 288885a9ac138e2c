"""The page of a version: the result of the promotion gate, metrics with baselines and standard errors, charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from core.kprior.model.spec import Target, values_of
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.models.policy import policy_of
from core.tables.keys import Scope
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.charts import of_predictions
from core.tracking.lineage import main_metric
from core.versions.privacy_rounding import ERROR_SUFFIX, HEAVIEST, ROWS
from core.versions.queries import MAX_NUMBER, find_version
from service.context import ContextDep
from service.pages.page_route import PageRoute
from service.pages.quarantine import ComparisonLine, describe_verdict, list_comparisons
from service.pages.rendering import render
from service.pages.sign_in import VisitorDep

router = APIRouter(prefix="/models/{name}/versions/{number}", route_class=PageRoute, include_in_schema=False)

BASELINE = "baseline_"


@dataclass(frozen=True)
class MetricLine:
    """A metric on the holdout."""

    name: str
    value: float
    error: float | None
    baseline: float | None


@dataclass(frozen=True)
class LabelLine:
    """One label of a target that has several."""

    name: str
    metrics: dict[str, float]
    relative_bound: float | None


@dataclass(frozen=True)
class VersionPage:
    """Content of the page."""

    model: Model
    version: Version
    metrics: list[MetricLine]
    """The headline first."""
    charts: list[Markup]
    threshold: float | None
    """Decision threshold that the metrics were computed with, for binary targets and labels."""
    labels: list[LabelLine]
    """One for each label of a target that has several."""
    verdict: str
    """What the promotion gate found."""
    comparisons: list[ComparisonLine]
    """Those of the promotion gate."""


def list_labels(version: Version, target: Target) -> list[LabelLine]:
    """The metrics and the certificate of each label."""
    bounds = version.certificate.labels if version.certificate and version.certificate.labels else {}
    lines = []
    for value in values_of(target) if target["kind"] == "labels" else []:
        prefix, bound = f"{value}/", bounds.get(str(value))
        own = {n.removeprefix(prefix): v for n, v in version.metrics.items() if n.startswith(prefix)}
        lines.append(LabelLine(str(value), own, bound.relative if bound else None))
    return lines


def list_metrics(metrics: dict[str, float], headline: str | None) -> list[MetricLine]:
    """The metrics without their standard errors and baselines, which are shown beside them."""
    names = [n for n in metrics if n not in (ROWS, HEAVIEST) and not n.endswith(ERROR_SUFFIX) and "/" not in n]
    names = sorted((n for n in names if not n.startswith(BASELINE)), key=lambda name: name != headline)
    return [MetricLine(n, metrics[n], metrics.get(n + ERROR_SUFFIX), metrics.get(BASELINE + n)) for n in names]


@router.get("")
def show_version(
    name: str, number: Annotated[int, Path(ge=1, le=MAX_NUMBER)], visitor: VisitorDep, context: ContextDep
) -> Response:
    """Show a version."""
    visitor.caller.require(Scope.READ)
    with context.database.read() as session:
        model = catalog.find(session, name, visitor.caller.models)
        version = find_version(session, model, number)
        spec = spec_at(session, model.id, model.spec, version.position)
    headline = main_metric(version.metrics, policy_of(model).headline)
    drawn = of_predictions(version, spec["target"])
    drawn.pop("labels.svg", None)  # the page has a table of the labels, with exact figures
    charts = [Markup(chart) for chart in drawn.values()]
    page = VersionPage(
        model,
        version,
        list_metrics(version.metrics, headline),
        charts,
        (version.evaluation or {}).get("threshold"),
        list_labels(version, spec["target"]),
        describe_verdict(version, version.gate) if version.gate else "",
        list_comparisons(version.gate) if version.gate else [],
    )
    return HTMLResponse(render("version.html", visitor, page=page))
