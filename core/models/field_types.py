"""Types of fields in requests."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

NAME = r"^[a-z0-9_-]{1,63}$"
"""Names of models."""

PLAIN = r"^[^\x00-\x1f\x7f]+$"
"""Text without control characters. PostgreSQL cannot store NUL."""


def exact(value: Any) -> Any:
    """Reject booleans, which are integers in Python but not in JSON."""
    if isinstance(value, bool):
        raise ValueError("must be a number or text, not true or false")
    return value


def as_utc(moment: datetime) -> datetime:
    """Convert a time to UTC; a time without a time zone is UTC already."""
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("must be between the years 1 and 9999 in UTC") from None


Text = Annotated[StrictStr, Field(min_length=1, max_length=200, pattern=PLAIN)]
Integer = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
"""A number that Arrow and Parquet can hold."""
Value = Annotated[Integer | Text, BeforeValidator(exact)]
Option = bool | int | float | Text | Annotated[list[int | float | Text], Field(max_length=1000)] | None
"""Value of a plugin's option; not nested."""
Positive = Annotated[float, Field(gt=0)]
Moment = Annotated[datetime, AfterValidator(as_utc)]


class Strict(BaseModel):
    """Base of all parts of a request: unknown fields and non-finite numbers are rejected."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


def is_none(value: object) -> bool:
    return value is None


def is_zero(value: object) -> bool:
    return value == 0


def distinct(values: list[Any]) -> list[Any]:
    # compared as text, which is what CSV files and the names of probabilities contain
    if len({str(v) for v in values}) < len(values):
        raise ValueError("must be distinct")
    return values


Values = Annotated[list[Value], Field(fail_fast=True), AfterValidator(distinct)]
