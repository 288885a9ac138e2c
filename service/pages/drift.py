"""The page about the drift of a model: histograms of the reference and of the recent examples, most drifted first."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from core.charts.bars import histogram_pair
from core.tables.documents import DriftMeasure
from core.tables.keys import Scope
from service.context import ContextDep
from service.drift import find_report
from service.pages.page_route import PageRoute
from service.pages.rendering import render
from service.pages.sign_in import VisitorDep

router = APIRouter(prefix="/models/{name}/drift", route_class=PageRoute, include_in_schema=False)

LABELS = {"date": 2}
"""Labels below a histogram by type; otherwise 3: the charts are small."""


@dataclass(frozen=True)
class Histogram:
    """A column, or the predictions, on the page."""

    name: str
    type: str
    measured: DriftMeasure
    chart: Markup


@router.get("")
def show_drift(name: str, visitor: VisitorDep, context: ContextDep) -> Response:
    """Show the drift of a model."""
    visitor.caller.require(Scope.READ)
    report = find_report(context, visitor.caller, name)
    shown = [draw(column["name"], column["type"], column) for column in report["columns"]]
    if report["predictions"] is not None:
        shown.insert(0, draw("Predictions", report["predictions"]["type"], report["predictions"]))
    return HTMLResponse(render("drift.html", visitor, name=name, report=report, shown=shown))


def draw(name: str, type: str, measured: DriftMeasure) -> Histogram:
    bins = measured["bins"]
    counts = {
        "last training": [entry["reference"] for entry in bins],
        "recent": [entry["window"] for entry in bins],
    }
    labels = [entry["label"] for entry in bins]
    chart = histogram_pair(labels, counts, label=f"Distribution of {name}", max_labels=LABELS.get(type, 3))
    return Histogram(name, type, measured, chart)
