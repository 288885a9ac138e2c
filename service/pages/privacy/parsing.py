"""From forms to the bodies of the REST endpoints."""

import csv
import io
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from core.errors import AmendError, Invalid
from service.erasures.schemas import NewErasure
from service.http.problems import readable

Body = TypeVar("Body", bound=BaseModel)
COLUMNS = ("subject", "aliases", "received", "reference", "reason")
"""Columns of a list of requests, in this order unless its first line names them."""
ALIAS_SEPARATOR = "|"
FIELDS = {"subject": "identifier", "subjects": "other identifiers", "received_at": "date of receipt", "y": "label"}
"""Names of fields on the pages, where they differ from those of the API."""
PROBLEMS = {
    "string_too_short": "is missing",
    "string_too_long": "is too long",
    "datetime_from_date_parsing": "must be a date such as 2026-03-01",
    "datetime_parsing": "must be a date such as 2026-03-01",
    "greater_than_equal": "is too early",
}
"""Problems in words, by pydantic's name."""


def parse(kind: type[Body], values: Mapping[str, Any]) -> Body:
    """The body with these values. Raises Invalid with the first problem, in words."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        problem = PROBLEMS.get(first["type"], f"is invalid: {first['msg']}")
        raise Invalid.at((str(first["loc"][0]) if first["loc"] else "form",), "request_invalid", problem) from None


def explain(error: AmendError) -> str:
    """What is wrong with a form, in the words of the form.

    >>> explain(Invalid.at(("requests", 1, "received_at"), "request_invalid", "must not be in the future"))
    'Request 2: date of receipt must not be in the future.'
    """
    if not error.errors or not error.errors[0]["loc"]:
        return readable(error.detail)
    location, message = error.errors[0]["loc"], error.errors[0]["msg"]
    where = ""
    if location[0] == "requests" and len(location) > 1:
        where, location = f"request {int(location[1]) + 1}: ", location[2:]
    field = str(location[-1]) if location else ""
    text = f"{where}{FIELDS.get(field, field)} {message}".strip()
    return readable(f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}")


def parse_filing(form: Mapping[str, str], hold: bool | None) -> NewErasure:
    """The request of a form. `hold` is None where a second person has to approve requests anyway."""
    aliases = [line.strip() for line in form.get("aliases", "").splitlines() if line.strip()]
    return parse(NewErasure, filing_values({**form, "aliases": ALIAS_SEPARATOR.join(aliases)}, hold))


def filing_values(given: Mapping[str, str], hold: bool | None) -> dict[str, Any]:
    values: dict[str, Any] = {"subject": given.get("subject", "").strip()}
    aliases = [alias.strip() for alias in given.get("aliases", "").split(ALIAS_SEPARATOR) if alias.strip()]
    if aliases:
        values["subjects"] = aliases
    for field, name in (("received", "received_at"), ("reference", "reference"), ("reason", "reason")):
        if text := given.get(field, "").strip():
            values[name] = text
    if hold is not None:
        values["hold"] = hold
    return values


def parse_list(text: str, hold: bool | None) -> list[NewErasure]:
    """The requests of a list, one per line, as copied from a spreadsheet or a CSV file.

    >>> [r.reference for r in parse_list("user-7;;2026-03-01;R-1\\nuser-8\\n", hold=True)]
    ['R-1', None]
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Invalid.at(("list",), "request_invalid", "is empty: enter one request per line")
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter_of(lines[0])))
    columns: tuple[str, ...] = COLUMNS
    header = [cell.strip().lower() for cell in rows[0]]
    if header[0] == "subject":
        unknown = [name for name in header if name not in COLUMNS]
        if unknown:
            known = ", ".join(COLUMNS)
            raise Invalid.at(("list",), "request_invalid", f"has an unknown column: {unknown[0]}. Known: {known}")
        columns, rows = tuple(header), rows[1:]
    found = []
    for number, row in enumerate(rows):
        if len(row) > len(columns):
            raise Invalid.at(("requests", number), "request_invalid", f"it has more than {len(columns)} columns")
        try:
            found.append(parse(NewErasure, filing_values(dict(zip(columns, row, strict=False)), hold)))
        except Invalid as error:
            field, message = str(error.errors[0]["loc"][0]), error.errors[0]["msg"]
            raise Invalid.at(("requests", number, field), "request_invalid", message) from None
    return found


def delimiter_of(line: str) -> str:
    """The character that separates the columns: spreadsheets copy tabs, and write commas or semicolons."""
    return next((sign for sign in ("\t", ";", ",") if sign in line), ",")
