"""Responses about jobs."""

from datetime import datetime
from typing import Any

from pydantic import Field

from core.tables.documents import JobError
from core.tables.jobs import Job, JobKind, JobState
from service.http.response_model import ResponseModel


class JobResponse(ResponseModel):
    """A job: one unit of work on one model."""

    id: str
    model: str
    kind: JobKind
    state: JobState
    progress: float = Field(ge=0, le=1)
    """Fraction of the work that is done."""
    message: str
    """What the job is doing, or its result."""
    attempts: int
    """Number of attempts that a worker has started."""
    error: JobError | None
    from_position: int
    to_position: int
    """Position of the ledger that the job brings the model to, unless more changes arrive before it starts."""
    version: int | None
    """Version that the job made."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def of_job(job: Job, model: str) -> JobResponse:
    values: dict[str, Any] = {name: getattr(job, name) for name in JobResponse.model_fields if name != "model"}
    return JobResponse(model=model, **values)
