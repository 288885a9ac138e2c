"""Measuring drift after a job. The job has ended by then, so nobody waits for it."""

from __future__ import annotations

import structlog

from core.kprior import State
from core.quality.drift_records import count_erased, is_due, record_report
from core.quality.drift_report import measure_drift
from core.quality.drift_rows import DriftScope
from core.tables.models import Model
from core.tables.quality import DriftReport
from worker.context import Context

log = structlog.get_logger("worker")


def update_drift(context: Context, model_id: int) -> None:
    """Measure the drift of a model and store the report, if enough has changed since the last one.

    A failure is logged, not raised: the next job measures again, and so does a request for the report.
    """
    try:
        with context.database.read() as session:
            model = session.get(Model, model_id)
            scope = DriftScope.of(session, model) if model else None
            if scope is None or not is_due(scope.model, scope.trained_at, session.get(DriftReport, model_id)):
                return
            erased = count_erased(session, model_id)
        champion = scope.champion
        state = State.from_bytes(context.store.get(champion.file, champion.sha256), context.device)
        report = measure_drift(context.database, scope, state)
        with context.database.write() as session:
            model = session.get(Model, model_id, with_for_update=True)
            if model is None or model.champion != champion.number:
                return  # deleted, or the next job has promoted another version and measures again
            if count_erased(session, model_id) != erased:
                return  # the job of the erasure measures again
            record_report(session, model, report)
    except Exception as error:
        log.warning("drift_measurement_failed", model_id=model_id, exc_info=error)
