"""Labels of examples that were stored without one: parsed from five formats, and added to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec
import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Invalid, Malformed, NotFound, Unsupported
from core.ledger.additions import LayoutChanged
from core.ledger.labels import add_labels as add_to_ledger
from core.models import catalog
from core.models.field_types import is_zero
from core.tables.audit import Action
from service import prometheus_counters
from service.context import CachedModel, ContextDep
from service.examples.endpoints import with_cached_model
from service.examples.formats import FORMATS, JSON
from service.examples.json_objects import decode_or_refuse
from service.examples.readers import RowReader, check_ids, check_text
from service.examples.tables import check_csv, open_arrow, open_parquet, parse_csv, read_ids
from service.http.auth import Ingester
from service.http.body_schemas import describe_body
from service.http.body_threads import run_for_body
from service.http.problems import problem_responses
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.models.endpoints import Name
from service.parsing import json_items
from service.parsing.targets import Targets

router = APIRouter(prefix="/v1/models/{name}/labels", tags=["Examples"], route_class=AuthenticatedRoute)

FIELD = "labels"
LABEL = {
    "type": "object",
    "required": ["id", "y"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 200, "description": "Id of an example without a label."},
        "y": {
            "type": ["integer", "number", "string", "boolean", "array"],
            "items": {"type": ["integer", "string", "boolean"]},
        },
    },
}
LINES = '{"id": "w3", "y": 1}\n{"id": "w4", "y": 0}\n'
BODY = describe_body(
    FIELD,
    {"items": LABEL},
    {FIELD: [{"id": "w1", "y": 1}, {"id": "w2", "y": 0}]},
    formats={
        "application/x-ndjson": {"schema": {"type": "string"}, "example": LINES},
        "text/csv": {"schema": {"type": "string"}, "example": "id,y\nw5,1\nw6,0\n"},
        **{
            binary: {"schema": {"type": "string", "format": "binary"}}
            for binary in FORMATS
            if binary.startswith("application/vnd.apache.")
        },
    },
)
MAX_COMMAS = 1000
"""Limit of the commas in one label: an id may contain some."""


class LabelledResponse(ResponseModel):
    """Result of sending labels. All labels of known examples are stored, or none."""

    accepted: int = 0
    """Number of labels that were stored; each adds its example to the ledger."""
    unknown: list[str] = []
    """Ids that belong to no example of the model, with or without a label."""
    duplicates: int = 0
    """Number of labels that their examples already had."""
    quarantined: int = Field(0, exclude_if=is_zero)
    """Number of stored labels whose examples are in quarantine, because they are about people whose data was erased;
    missing if zero."""


@dataclass(frozen=True)
class Labels:
    """Parsed labels: n ids, and (n,) targets as numbers."""

    ids: pa.StringArray
    y: NDArray[np.float64]


class Label(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    y: bool | int | float | str | list[bool | int | float | str] | None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    labels: list[Label]


class Rest(msgspec.Struct, forbid_unknown_fields=True):
    """A body whose labels were cut out."""

    labels: list[msgspec.Raw]


class LabelReader(RowReader):
    """Spec and limits for labels."""

    field, noun, needed = FIELD, "label", ("id", "y")

    @cached_property
    def max_rows(self) -> int:
        return self.max_batch

    @property
    def width(self) -> int:
        return 0

    def check_columns(self, names: list[str]) -> None:
        if strange := set(names) - {"id", "y"}:
            message = f"unknown column {min(strange)!r}; labels have the columns 'id' and 'y'"
            raise Invalid.at((FIELD,), "example_invalid", message)

    def from_json(self, body: bytes) -> Labels:
        if len(body) <= json_items.MAX_UNSPLIT_BYTES:
            return self.from_objects(decode_or_refuse(lambda: msgspec.json.decode(body, type=Body)).labels)
        labels: list[Label] = []
        for part in json_items.pieces(
            body,
            FIELD,
            self.max_rows,
            MAX_COMMAS,
            self.check_size,
            lambda rest: decode_or_refuse(lambda: msgspec.json.decode(rest, type=Rest)),
        ):
            with json_items.shift_errors(FIELD, len(labels)):
                labels += decode_or_refuse(partial(msgspec.json.decode, part, type=Body)).labels
        return self.from_objects(labels)

    def from_lines(self, body: bytes) -> Labels:
        labels: list[Label] = []
        decoder = msgspec.json.Decoder(Label)
        for part in json_items.lines(body, FIELD, MAX_COMMAS):
            with json_items.shift_errors(FIELD, len(labels)):
                labels += decode_or_refuse(partial(decoder.decode_lines, part), FIELD)
            if len(labels) > self.max_rows:
                self.check_size(len(labels), exactly=False)
        return self.from_objects(labels)

    def from_objects(self, labels: list[Label]) -> Labels:
        self.check_size(len(labels))
        names = [label.id for label in labels]
        try:
            ids = pa.array(names, pa.string())
        except UnicodeEncodeError:  # lone surrogates, which are not printable
            check_text(names, "id", "id_invalid", FIELD)
            raise
        check_ids(ids, FIELD)
        return Labels(ids, Targets.of(self.spec).from_json([label.y for label in labels], FIELD))

    def from_csv(self, body: bytes) -> Labels:
        check_csv(self, body)
        try:
            return self.from_table(parse_csv(body, {"id": pa.string(), "y": pa.string()}))
        except pa.ArrowInvalid as error:
            raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None

    def from_table(self, table: pa.Table) -> Labels:
        self.check_size(table.num_rows)
        ids = read_ids(table, FIELD)
        check_ids(ids, FIELD)
        return Labels(ids, Targets.of(self.spec).from_column(table.column("y"), FIELD))

    def read(self, content_type: str, body: bytes) -> Labels:
        """The labels of a body, according to its content type."""
        readers: dict[str, Callable[[bytes], Labels]] = {
            JSON: self.from_json,
            "application/x-ndjson": self.from_lines,
            "text/csv": self.from_csv,
            "application/vnd.apache.arrow.stream": lambda body: self.from_table(open_arrow(self, body)),
            "application/vnd.apache.parquet": lambda body: self.from_table(open_parquet(self, body)),
        }
        kind = content_type.partition(";")[0].strip().lower() or JSON
        if kind not in readers:
            known = ", ".join(readers)
            raise Unsupported("content_type_unsupported", f"Unsupported Content-Type. Use one of: {known}.")
        return readers[kind](body)


@router.post("", response_model=LabelledResponse, responses=problem_responses(404, 409, 413, 415), openapi_extra=BODY)
async def add_labels(request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write) -> Response:
    """Add the labels of examples that were stored without one: JSON, NDJSON, CSV, an Arrow stream or Parquet, with the
    columns `id` and `y`.

    A label adds its example to the ledger, at a position of its own. The label that an example already has is counted
    under `duplicates`; another one is a conflict, and none of the labels is stored. Correct examples with PUT.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    settings = context.settings

    def act(cached: CachedModel) -> Response:
        labels = LabelReader(cached.spec, settings.max_batch, settings.max_body_bytes).read(kind, body)

        def store(session: Session) -> LabelledResponse:
            model = catalog.find(session, name, caller.models, lock=True)
            if model.id != cached.id:
                raise NotFound("model_not_found", "The model does not exist.")
            if model.layout_position != cached.layout_position:
                raise LayoutChanged
            stored = add_to_ledger(session, model, labels.ids.to_pylist(), labels.y, context.screen)
            prometheus_counters.EXAMPLES.labels("labelled").inc(stored.accepted)
            return LabelledResponse(**vars(stored))

        return write(caller, 200, store, Action.LABELS_ADDED, About(name))

    return await run_for_body(body, lambda: with_cached_model(name, caller, context, act))
