"""What all formats share: the limits of a batch, and the validation of ids and subjects."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.errors import Invalid, TooLarge
from core.kprior.model.spec import PredictorSpec
from core.ledger.batch import Batch
from core.ledger.holdout_split import Split
from core.ledger.subject_hashes import subject_hashes
from service.parsing.columns import RESERVED
from service.parsing.inputs import Inputs, inputs_of
from service.parsing.inputs.base import Unseen

FIELD = "examples"
MAX_ID_LENGTH = 200
"""Maximum number of characters of an id or a subject."""
SPLITS: dict[str | None, Split] = {None: None, "train": False, "holdout": True}


@dataclass(frozen=True)
class RowReader:
    """Spec and limits for parsing a body."""

    spec: PredictorSpec
    max_batch: int
    max_bytes: int
    field: ClassVar[str]
    """Name of the list of rows in error locations."""
    noun: ClassVar[str]
    """What error messages call one row."""
    needed: ClassVar[tuple[str, ...]]
    """Columns that a table must have besides the features."""

    @cached_property
    def inputs(self) -> Inputs:
        return inputs_of(self.spec)

    @cached_property
    def max_rows(self) -> int:
        """Maximum number of rows in one request. As stored, they take no more bytes than a body may have."""
        return max(1, min(self.max_batch, self.max_bytes // (self.inputs.width * np.dtype(self.inputs.dtype).itemsize)))

    @property
    def width(self) -> int:
        """Number of features."""
        return self.inputs.width

    def check_columns(self, names: list[str]) -> None:
        """Raise Invalid unless a table with these columns has the features, and nothing that is unknown."""
        known = RESERVED if self.spec["input"]["kind"] != "table" else RESERVED - {"x"}
        strange = set(names) - known - set(self.inputs.feature_columns(names))
        if strange:
            raise Invalid.at((self.field,), "example_invalid", f"unknown column {min(strange)!r}")
        self.inputs.check_columns(names, self.field)

    def check_size(self, size: int, exactly: bool = True) -> None:
        if size == 0:
            raise Invalid("batch_empty", f"The body contains no {self.noun}s.")
        if size > self.max_rows:
            raise batch_too_large(size, self.max_rows, self.field, exactly)

    def check_unpacked(self, size: int) -> None:
        if size > self.max_bytes:
            message = f"The decompressed body has {size} bytes; the limit is {self.max_bytes}. Send fewer {self.field}."
            raise TooLarge("body_too_large", message)


@dataclass(frozen=True)
class OptionalColumns:
    """The fields of examples that need not be given."""

    subjects: Sequence[Any]
    splits: Sequence[Any]
    weights: NDArray[np.float64] | None
    times: NDArray[np.datetime64] | None
    sources: Sequence[Any]
    unseen: Unseen | None
    """Texts of unseen category values."""


@dataclass(frozen=True)
class ExampleReader(RowReader):
    """Spec and limits for examples, with the key of subject hashes."""

    secret: bytes
    caseless: bool = False
    """Whether subjects are compared case-insensitively."""
    unlabelled: bool = True
    """Whether examples may come without a label."""
    field, noun, needed = FIELD, "example", ("id", "y")

    def batch(self, ids: pa.StringArray, x: Any, y: Any, optional: OptionalColumns) -> Batch:
        """Build a batch from columns; inputs, targets, weights and times have been validated already."""
        check_ids(ids)
        subjects, splits, sources = optional.subjects, optional.splits, optional.sources
        given = subjects if any(subjects) or "" in subjects else None
        if given is not None:
            check_text([s if s is not None else "-" for s in given], "subject", "subject_invalid")
        hashes = subject_hashes(subjects, self.secret, self.caseless) if given is not None else [None] * len(ids)
        chosen = splits if splits.count(None) == len(splits) else [SPLITS[s] for s in splits]
        if sources.count(None) < len(sources):
            check_text([s if s is not None else "-" for s in sources], "source", "source_invalid")
        named = None if sources.count(None) == len(sources) else sources
        if optional.unseen is not None:
            self.check_unpacked(sum(len(text) for text in optional.unseen if text is not None))
        return Batch(
            *(ids, hashes, x, y, chosen),
            weights=optional.weights,
            times=optional.times,
            sources=named,
            unseen=optional.unseen,
        )


class InputReader(RowReader):
    """Spec and limits for the inputs of predictions."""

    field, noun, needed = "inputs", "input", ()


def batch_too_large(size: int, max_batch: int, noun: str, exactly: bool = True) -> TooLarge:
    count = str(size) if exactly else f"more than {max_batch}"
    requests = f"{-(-size // max_batch)} requests" if exactly else "several requests"
    message = f"The request has {count} {noun}; the limit is {max_batch}. Send {requests}."
    return TooLarge("batch_too_large", message)


def check_ids(ids: pa.StringArray, field: str = FIELD) -> None:
    """`check_text` for many ids at once; fast if all are ASCII, where a byte is a character."""
    sizes = pc.binary_length(ids).to_numpy()
    start = int(np.frombuffer(ids.buffers()[1], np.int32, 1, ids.offset * 4)[0])
    data = np.frombuffer(ids.buffers()[2], np.uint8, int(sizes.sum()), start)
    if not (sizes.min() > 0 and sizes.max() <= MAX_ID_LENGTH and data.min() >= ord(" ") and data.max() <= ord("~")):
        check_text(ids.to_pylist(), "id", "id_invalid", field)


def check_text(texts: Sequence[Any], name: str, code: str, field: str = FIELD) -> None:
    """Raise Invalid unless all texts have 1 to 200 printable characters."""
    if all(map(str.isprintable, texts)) and "" not in texts and max(map(len, texts)) <= MAX_ID_LENGTH:
        return
    i = next(i for i, t in enumerate(texts) if not (t.isprintable() and 0 < len(t) <= MAX_ID_LENGTH))
    raise Invalid.at((field, i, name), code, f"must have 1 to {MAX_ID_LENGTH} printable characters")
