"""Requests as they are stored for a job, and the rows that they refer to."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from core.analyses.analysed_model import AnalysedModel
from core.analyses.hypothetical_examples import Change, Part, SpecChange
from core.database import Database
from core.errors import Conflict, Invalid
from core.inference.frozen_encoders import Encode
from core.kprior import Examples
from core.kprior.data.schema_conversion import input_conversion
from core.kprior.model.spec import Spec
from core.ledger import passes, unlabelled_examples
from core.ledger.batch import Batch
from core.ledger.layouts import Layout, recovers_examples
from core.ledger.queries import look_up_in_force
from core.ledger.spec_history import check_change, check_soft_labels, part_of, restore_columns
from core.models.policy import HoldoutPolicy
from core.tables.ledger import ChangeKind, Example, PendingExample
from core.tables.models import Model

MAX_POOL_ROWS = 100_000
"""Examples without a label that a batch is chosen from."""
MAX_POOL_BYTES = 2**29
"""Features of a frozen encoder that are kept in memory for such a choice."""


def encode_array(x: NDArray[Any]) -> dict[str, Any]:
    """Numbers as JSON.

    >>> decode_array(encode_array(np.arange(4, dtype=np.float32).reshape(2, 2))).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    return {"dtype": str(x.dtype), "shape": list(x.shape), "data": base64.b64encode(x.tobytes()).decode()}


def decode_array(given: dict[str, Any]) -> Tensor:
    """The inverse of `encode_array`."""
    data = np.frombuffer(base64.b64decode(given["data"]), given["dtype"])
    return torch.from_numpy(data.reshape(given["shape"]).copy())


def encode_batch(batch: Batch, x: NDArray[Any], policy: HoldoutPolicy) -> dict[str, Any]:
    """Examples to add, as JSON, with their inputs as the model sees them; without ids.

    Of the keyed hashes of subjects, it has the beginnings, which standard errors need.
    """
    weights = None if batch.weights is None else np.where(np.isnan(batch.weights), 1.0, batch.weights)
    return {
        "x": encode_array(x),
        "y": encode_array(batch.y),
        "weight": None if weights is None else encode_array(weights),
        "holdout": batch.holdouts(policy).tolist(),
        "subjects": [None if subject is None else subject[:8].hex() for subject in batch.subjects],
    }


def decode_rows(given: dict[str, Any], spec: Spec, first: int) -> tuple[Examples, Tensor]:
    """Examples to add, at positions from `first` on; and which of them are in the holdout."""
    y = Layout(spec).tensor_of(decode_array(given["y"]).numpy())
    weight = None if given["weight"] is None else decode_array(given["weight"])
    keys = torch.arange(first, first + len(y))
    return Examples(keys, decode_array(given["x"]), y, weight), torch.tensor(given["holdout"], dtype=torch.bool)


def check_parts(session: Session, model: Model, spec: Spec, parts: Sequence[Part]) -> None:
    """Raise Invalid if a change of the columns or classes is impossible, or needs values that only the ledger has."""
    for kind, value in parts:
        if kind in (ChangeKind.INPUT, ChangeKind.TARGET):
            check_change(session, model, kind, part_of(spec, kind), value)
        if kind is ChangeKind.INPUT:
            conversion = input_conversion(spec["input"], value)
            layout = Layout.at(session, model.id, spec, model.head)
            restored = restore_columns(session, model, value)[1]
            adding = conversion if conversion is not None and conversion.adds_values else None
            if restored or (adding and recovers_examples(session, model.id, layout, adding, model.head)):
                message = "A change that restores dropped columns or recovers unseen values cannot be previewed."
                raise Invalid("preview_unsupported", message)


def resolve_change(session: Session, model: AnalysedModel, request: dict[str, Any]) -> Change:
    """The change that a preview is about, with its rows."""
    parts: list[Part] = [(ChangeKind(kind), value) for kind, value in request.get("change", [])]
    spec = SpecChange.of(model.spec, parts)
    check_soft_labels(session, model.model_id, model.spec, spec.spec)
    removed, held_out, unknown = find_rows(session, model.model_id, model.at, request.get("remove") or {})
    gone = None
    if len(removed):
        gone = passes.read_positions(session, model.model_id, model.spec, removed.tolist(), model.at)
        if len(gone) >= model.state.count and not request.get("add"):
            raise Conflict("nothing_to_train_on", "The change would remove all training examples.")
    added = added_holdout = None
    subjects: dict[int, bytes] = {}
    if given := request.get("add"):
        rows, holdout = decode_rows(given, spec.spec, model.at + 1)
        added, added_holdout = rows.take(~holdout), rows.take(holdout)
        people = zip(rows.key.tolist(), given.get("subjects", ()), strict=False)
        subjects = {position: bytes.fromhex(subject) for position, subject in people if subject is not None}
    return Change(spec, gone, held_out, added, added_holdout, unknown, bool(request.get("erasure")), subjects)


def find_rows(
    session: Session, model_id: int, at: int, remove: dict[str, Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Positions of training and of holdout rows in force at a position, and the names that are unknown."""
    columns = (Example.position, Example.holdout)
    unknown: list[str] = []
    if ids := remove.get("ids"):
        found = list(look_up_in_force(session, model_id, Example.id, ids, (*columns, Example.id)))
        known = {row[2] for row in found}
        unknown = [id for id in dict.fromkeys(ids) if id not in known]
    elif subjects := remove.get("subjects"):
        hashes = [bytes.fromhex(subject) for subject in subjects]
        found = list(look_up_in_force(session, model_id, Example.subject, hashes, (*columns, Example.subject)))
        known = {row[2] for row in found}
        unknown = [f"subject {i + 1}" for i, subject in enumerate(hashes) if subject not in known]
    elif (source := remove.get("source")) is not None:
        query = select(*columns).where(Example.model_id == model_id, Example.removed.is_(None))
        found = list(session.execute(query.where(Example.source == source)))
        unknown = [] if found else [source]
    else:
        found = []
    inside = sorted((row[0], row[1]) for row in found if row[0] <= at)
    positions = np.array([position for position, _ in inside], np.int64)
    holdout = np.array([held_out for _, held_out in inside], bool)
    return positions[~holdout], positions[holdout], unknown


def pending_pool(
    database: Database, model_id: int, spec: Spec, at: int, encode: Encode | None = None
) -> tuple[Tensor, Sequence[str]]:
    """The inputs of examples without a label, and their ids; without those that the model's encoder cannot encode."""
    with database.read() as session:
        layout = Layout.at(session, model_id, spec, at)
        one = PendingExample
        query = select(one.id, one.x, one.layout_position, one.unseen)
        ours = query.where(one.model_id == model_id, one.restricted.is_(False), one.holdout.is_(False))
        limit = min(MAX_POOL_ROWS, MAX_POOL_BYTES // (4 * layout.features)) if layout.features else MAX_POOL_ROWS
        found: Any = session.execute(ours.order_by(one.id).limit(limit)).all()
    # a row that was stored before a change of the columns is converted, as rows of the ledger are
    x, ids = unlabelled_examples.inputs_of(found, layout)[0], [row.id for row in found]
    if encode is not None and len(ids):
        x = encode(x)
        used = np.isfinite(x).all(1)
        x, ids = x[used], [id for id, good in zip(ids, used, strict=True) if good]
    if not ids:
        raise Conflict("pool_empty", "The model has no examples without a label. Send `inputs`.")
    return torch.from_numpy(x if layout.features else x.reshape(len(ids), *layout.shape)), ids
