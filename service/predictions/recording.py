"""Recording predictions: their inputs become examples without a label, stored with what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Invalid
from core.keys.quotas import charge
from core.ledger.batch import Batch, Predicted
from core.ledger.recorded_predictions import record_predictions
from core.ledger.subject_hashes import subject_hashes
from core.ledger.unseen_categories import without_nulls
from core.models import catalog
from core.models.policy import policy_of
from core.tables.audit import Action
from core.tables.keys import Scope
from service.examples.json_objects import decode_or_refuse
from service.examples.readers import MAX_ID_LENGTH, batch_too_large
from service.http.auth import Caller
from service.http.unit_of_work import UnitOfWork
from service.parsing.json_items import rename_errors
from service.predictions.unlabelled import find_challenger
from service.predictions.version_cache import CachedVersion, VersionCache

NULL = msgspec.Raw(b"null")


class Head(msgspec.Struct):
    """The options of a body, which are needed before the inputs can be read."""

    version: int | None = None
    uncertainty: bool = False
    explain: bool = False
    record: bool = False
    ids: msgspec.Raw = NULL
    subjects: msgspec.Raw = NULL


@dataclass(frozen=True)
class Recording:
    """Ids and subjects of the inputs of a request whose predictions are recorded."""

    ids: list[str]
    subjects: list[str | None] | None


def recording_of(head: Head, caller: Caller, max_batch: int) -> Recording | None:
    """What the options of a body say about recording; None if the predictions are not recorded."""
    if not head.record:
        for name in ("ids", "subjects"):
            if getattr(head, name) != NULL:
                raise Invalid.at((name,), "request_invalid", "requires `record`: true")
        return None
    caller.require(Scope.INGEST)
    ids: list[str] | None = read_texts(head.ids, "ids", list[str] | None, max_batch)
    if ids is None:
        raise Invalid.at(("ids",), "request_invalid", "is missing; recorded predictions need the id of each input")
    return Recording(ids, read_texts(head.subjects, "subjects", list[str | None] | None, max_batch))


def read_texts(raw: msgspec.Raw, name: str, kind: Any, max_batch: int) -> Any:
    """Decode a list of texts, after its length is checked: as Python objects they take many times their size."""
    text = bytes(raw)
    count = (text.count(b'"') - text.count(b'\\"')) // 2
    if count > max_batch:
        raise batch_too_large(count, max_batch, name, exactly=False)
    return decode_or_refuse(lambda: msgspec.json.decode(text, type=kind), name, code="request_invalid")


def is_name(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= MAX_ID_LENGTH


def check_texts(recording: Recording, count: int) -> None:
    """Raise Invalid unless there is a valid id, and a valid subject if any, for each input."""
    for name, texts, code in (
        ("ids", recording.ids, "id_invalid"),
        ("subjects", recording.subjects, "subject_invalid"),
    ):
        if texts is None:
            continue
        if len(texts) != count:
            raise Invalid.at((name,), "request_invalid", f"has {len(texts)} entries for {count} inputs")
        bad = next((i for i, text in enumerate(texts) if text is not None and not is_name(text)), None)
        if bad is not None:
            raise Invalid.at((name, bad), code, f"must have 1 to {MAX_ID_LENGTH} printable characters")


@dataclass(frozen=True)
class Recorder:
    """Stores the inputs and predictions of one request."""

    name: str
    used: CachedVersion
    """The version that predicted."""
    recording: Recording
    caller: Caller
    versions: VersionCache
    write: UnitOfWork
    size: int
    """Bytes of the body, for the key's quota."""

    def store(self, x: NDArray[Any], unseen: Sequence[str | None], mean: NDArray[Any], content: bytes) -> Response:
        """Store inputs (n, width) and their predictions (n, K), and respond with `content`, in one transaction.

        `unseen` are the texts of each input's unseen category values.
        """
        check_texts(self.recording, len(x))
        context = self.write.context
        with context.database.read() as session:
            challenger = policy_of(catalog.find(session, self.name, self.caller.models)).challenger
        second = find_challenger(self.name, challenger, self.used, self.caller, self.versions)
        predicted = Predicted(
            self.used.model.number or 0,
            mean.astype(np.float64),
            None if second is None else second.model.number,
            None if second is None else second.model.predict_means(x).astype(np.float64),
        )
        subjects = self.recording.subjects or [None] * len(x)
        hashes = subject_hashes(subjects, context.settings.secret, context.settings.caseless_subjects)
        ids, unknown = pa.array(self.recording.ids, pa.string()), np.full(len(x), np.nan)
        batch = Batch(ids, hashes, x, unknown, [None] * len(x), unseen=without_nulls(unseen), predicted=predicted)

        def act(session: Session) -> bytes:
            charge(session, self.caller.key_id, self.caller.quota, len(batch), self.size)
            model = catalog.find(session, self.name, self.caller.models, lock=True)
            with rename_errors("examples", "ids"):
                record_predictions(session, model, batch, context.screen)
            return content

        about = About(self.name, counts={"examples": len(batch)})
        return self.write(self.caller, 200, act, Action.PREDICTIONS_RECORDED, about)
