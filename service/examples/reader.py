"""What every format has in common: the limits of a batch, and the checks of ids and subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.errors import Invalid, TooLarge
from core.kprior.model.spec import PredictorSpec
from core.ledger.batch import Batch, Split, subject_hashes
from service.parsing.inputs import Inputs, inputs_of

FIELD = "examples"
MAX_ID_LENGTH = 200
"""Characters of an id or a subject."""
SPLITS: dict[str | None, Split] = {None: None, "train": False, "holdout": True}


@dataclass(frozen=True)
class RowReader:
    """What a body is read with: the model's spec, and limits."""

    spec: PredictorSpec
    max_batch: int
    max_bytes: int
    field: ClassVar[str]
    """What errors call the list of its rows."""
    what: ClassVar[str]
    """What one of them is."""
    needed: ClassVar[tuple[str, ...]]
    """Columns that a table must have besides the features."""

    @cached_property
    def inputs(self) -> Inputs:
        return inputs_of(self.spec)

    @cached_property
    def max_rows(self) -> int:
        """Examples in one request: as stored, they take no more bytes than a body may have."""
        return max(1, min(self.max_batch, self.max_bytes // (self.inputs.width * np.dtype(self.inputs.dtype).itemsize)))

    def check_size(self, size: int, exactly: bool = True) -> None:
        if size == 0:
            raise Invalid("batch_empty", f"There is no {self.what} in the body.")
        if size > self.max_rows:
            raise batch_too_large(size, self.max_rows, self.field, exactly)

    def check_unpacked(self, size: int) -> None:
        if size > self.max_bytes:
            message = (
                f"The body unpacks to {size} bytes; {self.max_bytes} are allowed. Send fewer {self.field} in a request."
            )
            raise TooLarge("body_too_large", message)


@dataclass(frozen=True)
class Reader(RowReader):
    """The same for examples, with the key of subject hashes."""

    secret: bytes
    caseless: bool = False
    """Whether subjects are the same whatever their case."""
    field, what, needed = FIELD, "example", ("id", "y")

    def batch(
        self, ids: pa.StringArray, subjects: Sequence[Any], splits: Sequence[Any], x: Any, y: Any, weights: Any
    ) -> Batch:
        """The batch of columns whose inputs, targets and weights are checked already."""
        check_ids(ids)
        given = subjects if any(subjects) or "" in subjects else None
        if given is not None:
            check_text([s if s is not None else "-" for s in given], "subject", "subject_invalid")
        hashes = subject_hashes(subjects, self.secret, self.caseless) if given is not None else [None] * len(ids)
        chosen = splits if splits.count(None) == len(splits) else [SPLITS[s] for s in splits]
        return Batch(ids, hashes, x, y, chosen, weights=weights)


class InputReader(RowReader):
    """The same for inputs of predictions."""

    field, what, needed = "inputs", "input", ()


def batch_too_large(size: int, max_batch: int, what: str, exactly: bool = True) -> TooLarge:
    """Says how to split what is too large."""
    many = f"{size} {what}" if exactly else f"More than {max_batch} {what}"
    number = f"{-(-size // max_batch)} requests" if exactly else "several requests"
    return TooLarge("batch_too_large", f"{many}; {max_batch} are allowed in one request: send them in {number}.")


def check_ids(ids: pa.StringArray) -> None:
    """`check_text` for many at once, as long as they are ASCII, of which a byte is a character."""
    sizes = pc.binary_length(ids).to_numpy()
    start = int(np.frombuffer(ids.buffers()[1], np.int32, 1, ids.offset * 4)[0])
    data = np.frombuffer(ids.buffers()[2], np.uint8, int(sizes.sum()), start)
    if not (sizes.min() > 0 and sizes.max() <= MAX_ID_LENGTH and data.min() >= ord(" ") and data.max() <= ord("~")):
        check_text(ids.to_pylist(), "id", "id_invalid")


def check_text(texts: Sequence[Any], name: str, code: str) -> None:
    """Ids and subjects are 1 to 200 printable characters."""
    if all(map(str.isprintable, texts)) and "" not in texts and max(map(len, texts)) <= MAX_ID_LENGTH:
        return
    i = next(i for i, t in enumerate(texts) if not (t.isprintable() and 0 < len(t) <= MAX_ID_LENGTH))
    raise Invalid.at((FIELD, i, name), code, f"must have 1 to {MAX_ID_LENGTH} printable characters")
