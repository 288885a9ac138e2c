"""The stored drift report of a model: when it is due, and what happens when drift begins.

It needs neither torch nor scipy, so that the scheduler loads fast.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.tables.documents import DriftDocument, DriftedNames, DriftMeasure
from core.tables.erasures import Part
from core.tables.ledger import PendingExample
from core.tables.models import Model
from core.tables.quality import DriftReport
from core.tables.webhooks import WebhookEvent
from core.webhooks.events import emit

NEW_CHANGES = 500
"""Changes of the ledger after which drift is measured again."""
MAX_AGE = timedelta(hours=1)
"""Age at which drift is measured again after fewer changes."""
ROUNDED_TO = 0.05
RECOVERED = 0.1
"""PSI below which a column that had drifted counts as stable again, so that small fluctuations send no events."""


def is_due(model: Model, trained_at: int, stored: DriftReport | None) -> bool:
    """Whether a worker should measure drift: cheap enough to be asked after every job."""
    if model.head == trained_at and stored is None:
        return False  # there is nothing to compare yet
    if stored is None or stored.report is None or stored.report["reference"]["last_position"] != trained_at:
        return True
    changes = model.head - stored.position
    return changes >= NEW_CHANGES or (changes > 0 and now() - stored.created_at >= MAX_AGE)


def is_current(session: Session, model: Model, trained_at: int, stored: DriftReport | None) -> bool:
    """Whether a stored report describes the present state of the model exactly."""
    report = stored.report if stored else None
    if stored is None or report is None or report["window"]["pending"]:
        return False
    arrived = (PendingExample.model_id == model.id, PendingExample.created_at > stored.created_at)
    if session.scalar(select(PendingExample.id).where(*arrived).limit(1)) is not None:
        return False
    present = (model.head, model.champion, trained_at)
    return (report["position"], report["version"], report["reference"]["last_position"]) == present


def count_erased(session: Session, model_id: int) -> int:
    """How many examples all erasure requests so far have taken out of force.

    If it changes while drift is measured, the report may count examples of an erased person.
    """
    return session.scalar(select(func.sum(Part.examples)).where(Part.model_id == model_id)) or 0


def record_report(session: Session, model: Model, report: DriftDocument) -> None:
    """Store a report, and send the event `drift.detected` if a column has begun to drift. The model must be locked."""
    stored = session.get(DriftReport, model.id)
    if stored is None:
        stored = DriftReport(model_id=model.id, drifted={"columns": [], "predictions": False})
        session.add(stored)
    elif stored.position > report["position"]:
        return  # another worker has measured a later position meanwhile
    before, drifted = stored.drifted, continue_drift(stored.drifted, report)
    new = set(drifted["columns"]).difference(before["columns"])
    if new or (drifted["predictions"] and not before["predictions"]):
        stored.detected_at = now()
        emit(session, WebhookEvent.DRIFT_DETECTED, model=model.name, position=report["position"], **drifted)
    elif not (drifted["columns"] or drifted["predictions"]):
        stored.detected_at = None
    stored.position, stored.report, stored.drifted, stored.created_at = report["position"], report, drifted, now()


def continue_drift(before: DriftedNames, report: DriftDocument) -> DriftedNames:
    """What has drifted: now, or earlier without having recovered since."""

    def is_drifting(measured: DriftMeasure, earlier: bool) -> bool:
        return measured["drifted"] or (earlier and measured["psi"] >= RECOVERED)

    columns = [c["name"] for c in report["columns"] if is_drifting(c, c["name"] in before["columns"])]
    predictions = report["predictions"]
    return {
        "columns": columns,
        "predictions": predictions is not None and is_drifting(predictions, before["predictions"]),
    }


def forget_report(session: Session, model_id: int) -> None:
    """Delete the counts of a model's report. The names of drifted columns stay, so that no event is sent twice."""
    session.execute(update(DriftReport).where(DriftReport.model_id == model_id).values(report=None))


def delete_report(session: Session, model_id: int) -> None:
    session.execute(delete(DriftReport).where(DriftReport.model_id == model_id))


def drift_detected_at(session: Session, model_id: int) -> datetime | None:
    """When the drift of a model was detected; None if nothing has drifted."""
    return session.scalar(select(DriftReport.detected_at).where(DriftReport.model_id == model_id))


def max_psi(report: DriftDocument) -> float:
    """The largest PSI of a column, rounded, because Prometheus keeps old values: exact ones would reveal single rows.

    PSI changes by less than a step when a row is added to 200 others.
    """
    largest = max((column["psi"] for column in report["columns"]), default=0.0)
    return round(largest / ROUNDED_TO) * ROUNDED_TO
