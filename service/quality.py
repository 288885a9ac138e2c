"""Quality of a model: test-then-train metrics by job or by time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from core.models import catalog
from core.models.policy import policy_of
from core.quality.quality_report import WindowGroup, group
from core.quality.queries import list_windows
from core.quality.scored_rows import Metric
from service.context import ContextDep
from service.http.auth import Reader
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/quality", tags=["Quality"], route_class=AuthenticatedRoute)

WindowKind = Annotated[
    Literal["day", "hour", "week", "job"],
    Query(description="Length of the windows, by event time where examples have one; `job`: one window per job."),
]


Contestant = dict[str, int | float | None]
"""`version`, and the metrics on the examples of a window; a name that ends in `_se` is a standard error."""


class SegmentMetricsResponse(ResponseModel):
    """Examples of a window with the same value of a column."""

    column: str
    value: str
    """The value; `(missing)` and `(other)` for missing and unseen values."""
    rows: int
    """Number of examples."""
    champion: dict[str, float]
    """Metrics of the champion at that time."""


class QualityWindowResponse(ResponseModel):
    """Predictions for new examples, made before the model learnt them."""

    model_config = ConfigDict(populate_by_name=True)

    from_: datetime = Field(alias="from")
    """Start of the window."""
    to: datetime
    """End of the window."""
    first_position: int
    last_position: int
    rows: int
    """Number of examples."""
    champion: Contestant
    """Metrics of the champion at that time, and the number of the newest `version` that was champion. A name that ends
    in `_se` is a standard error, clustered by subject."""
    frozen: Contestant | None
    """Metrics of the first version: how well the model would predict without any updates."""
    baseline: Contestant
    """Metrics of the best constant prediction for these examples."""
    challenger: Contestant | None
    """Metrics of the policy's challenger, if it made predictions."""
    segments: list[SegmentMetricsResponse]
    """The champion on the examples with each value of the columns in `policy.segments`, the worst by the gate's metric
    first. Values with fewer than 30 examples are left out, and so are all of them if the metrics are rounded."""
    alarm: bool
    """Whether the champion's loss was far above its usual loss."""
    rounded: bool
    """Whether the metrics were rounded, because a person in the data was erased."""


@router.get("", response_model=Page[QualityWindowResponse], responses=problem_responses(404))
def list_quality(
    name: Name,
    caller: Reader,
    context: ContextDep,
    window: WindowKind = "day",
    limit: Limit = 1000,
    after: After = None,
) -> Page[QualityWindowResponse]:
    """List test-then-train metrics, oldest first. New examples are predicted once, before the model learns them, so
    these metrics show how well the model predicts data that it has not seen."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        metric = policy_of(model).gate.metric
        since = parse_cursor(after, 0)
        groups = [g for g in group(list_windows(session, model.id), window) if g.first_position > since]
        return page_of(groups[: limit + 1], limit, lambda g: of_group(g, metric), lambda g: g.first_position)


def of_group(found: WindowGroup, metric: Metric) -> QualityWindowResponse:
    metrics = found.metrics()

    def contestant(name: str) -> Contestant | None:
        return {"version": found.newest(name), **metrics[name]} if name in metrics else None

    return QualityWindowResponse(
        from_=found.start,
        to=found.end,
        first_position=found.first_position,
        last_position=found.last_position,
        rows=found.rows,
        champion=contestant("champion") or {"version": found.newest("champion")},
        frozen=contestant("frozen"),
        baseline={**metrics.get("baseline", {})},
        challenger=contestant("challenger"),
        segments=[
            SegmentMetricsResponse(column=s.column, value=s.value, rows=s.rows, champion=s.metrics)
            for s in found.segments(metric)
        ],
        alarm=found.alarm,
        rounded=found.rounded,
    )
