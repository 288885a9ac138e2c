"""Kinds of fields that requests are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

NAME = r"^[a-z0-9_-]{1,63}$"
"""What a model may be called."""

PLAIN = r"^[^\x00-\x1f\x7f]+$"
"""Text without control characters: PostgreSQL stores no NUL, and no reader expects the others."""


def exact(value: Any) -> Any:
    """JSON's true is no number, though Python takes it for one."""
    if isinstance(value, bool):
        raise ValueError("must be a number or text, not true or false")
    return value


def as_utc(moment: datetime) -> datetime:
    """A moment with its time zone: UTC where it has none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Text = Annotated[StrictStr, Field(min_length=1, max_length=200, pattern=PLAIN)]
Value = Annotated[StrictInt | Text, BeforeValidator(exact)]
Option = bool | int | float | Text | Annotated[list[int | float | Text], Field(max_length=1000)] | None
"""What an option of a plugin may be: nothing nested."""
Positive = Annotated[float, Field(gt=0)]
Moment = Annotated[datetime, AfterValidator(as_utc)]


class Strict(BaseModel):
    """Base of all parts of a request: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


def is_none(value: object) -> bool:
    return value is None


def distinct(values: list[Any]) -> list[Any]:
    # by their text: CSV and the names of probabilities have no other form
    if len({str(v) for v in values}) < len(values):
        raise ValueError("must differ from each other")
    return values


Values = Annotated[list[Value], Field(fail_fast=True), AfterValidator(distinct)]
