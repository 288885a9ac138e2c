"""Answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from core.tables.jobs import Job, JobKind, JobState


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    detail: str


class JobAnswer(BaseModel):
    """One unit of work."""

    id: str
    model: str
    kind: JobKind
    state: JobState
    progress: float = Field(ge=0, le=1)
    message: str
    attempts: int
    error: JobError | None
    from_position: int
    to_position: int
    version: int | None = Field(description="The version it made.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def job_answer(job: Job, model: str) -> JobAnswer:
    values: dict[str, Any] = {name: getattr(job, name) for name in JobAnswer.model_fields if name != "model"}
    return JobAnswer(model=model, **values)
