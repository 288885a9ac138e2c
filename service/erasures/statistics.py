"""The register of requests as a file, and yearly statistics: for audits and for reports to the management."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Annotated

from fastapi import APIRouter, Header, Query
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse, Response

from core.erasure import listings, queries
from core.erasure.statistics import YearStatistics, is_extended, yearly_statistics
from core.tables.audit import Action
from core.tables.erasures import PENDING, RESTRICTIONS, Erasure
from service.context import Context, ContextDep
from service.csv_responses import CsvResponse
from service.erasures.endpoints import require_unrestricted
from service.http.auth import Eraser
from service.http.body_schemas import Schema
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1/erasures", tags=["Erasure"], route_class=AuthenticatedRoute)

MIN_YEAR, MAX_YEAR = 1970, 9998
ROWS_PER_READ = 500
"""Requests that are in memory at a time."""
CSV: Schema = {"content": {"text/csv": {"schema": {"type": "string"}}}}
Year = Annotated[int | None, Query(ge=MIN_YEAR, le=MAX_YEAR, description="Only requests received in this year (UTC).")]
COLUMNS = (
    "request",
    "kind",
    "reference",
    "received",
    "due",
    "extended",
    "state",
    "ended",
    "late",
    "filed by",
    "examples",
    "models",
    "receipt",
)


class StatisticsResponse(ResponseModel):
    """Numbers of requests by the year in which they were received, newest first."""

    years: list[YearStatistics]


@router.get("/statistics", response_model=StatisticsResponse, responses={200: CSV, **problem_responses()})
def show_statistics(
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="`text/csv` returns a CSV file.")] = "application/json",
) -> Response:
    """Get the yearly statistics of requests, as JSON or as CSV."""
    require_unrestricted(caller)
    with context.database.read() as session:
        years = yearly_statistics(session)
    if "text/csv" not in accept.lower():
        return JSONResponse({"years": [asdict(year) for year in years]})
    names = [field.name for field in fields(YearStatistics)]
    return CsvResponse(names, ([getattr(year, name) for name in names] for year in years), "statistics.csv")


@router.get("/register", response_class=Response, responses={200: CSV, **problem_responses()})
def export_register(caller: Eraser, context: ContextDep, auditor: AuditorDep, year: Year = None) -> CsvResponse:
    """Export the register of requests as a CSV file, oldest first: erasures and restrictions of processing."""
    require_unrestricted(caller)
    auditor.record_read(caller, Action.REGISTER_EXPORTED)
    name = f"requests-{year}.csv" if year else "requests.csv"
    return CsvResponse(COLUMNS, read_rows(context, year), name)


def read_rows(context: Context, year: int | None) -> Iterator[Sequence[object]]:
    """The rows of the register, read in several short transactions."""
    last: Erasure | None = None
    while True:
        with context.database.read() as session:
            found = listings.page_register(session, year, last, ROWS_PER_READ)
            rows = describe_rows(session, found)
        yield from rows
        if len(found) < ROWS_PER_READ:
            return
        last = found[-1]


def describe_rows(session: Session, erasures: Sequence[Erasure]) -> list[Sequence[object]]:
    parts, records = queries.details_of(session, erasures)
    rows: list[Sequence[object]] = []
    for erasure in erasures:
        actor = records[erasure.id][0]["actor"] if records[erasure.id] else None
        values = {
            "request": erasure.id,
            "kind": "restriction" if erasure.state in RESTRICTIONS else "erasure",
            "reference": queries.reference_in(records[erasure.id]),
            "received": erasure.received_at,
            "due": erasure.due_at,
            "extended": is_extended(erasure.received_at, erasure.due_at),
            "state": erasure.state.value,
            "ended": erasure.completed_at,
            "late": erasure.late and erasure.state not in PENDING,
            "filed by": (actor["name"] or actor["id"]) if actor else erasure.requested_by,
            "examples": sum(part.examples for part in parts[erasure.id]),
            "models": len(parts[erasure.id]),
            "receipt": erasure.receipt,
        }
        rows.append([values[column] for column in COLUMNS])
    return rows
