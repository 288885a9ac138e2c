"""Texts, which a frozen encoder turns into numbers."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.errors import Invalid
from core.kprior.model.text_storage import to_array, to_texts
from service.parsing import columns
from service.parsing.inputs.base import Inputs, Matrix, Unseen, location_of, shape_error

COLUMN = "text"
"""Name of the column of texts in CSV, Arrow and Parquet; `x` is accepted as well."""
MAX_TEXT_BYTES = 2**20
"""Maximum size of one text in UTF-8."""


class TextInputs(Inputs):
    """Strings of any length up to a limit. An empty text is a value."""

    json_type = str
    width = 1
    dtype = "object"

    @property
    def max_commas(self) -> int:
        return 2**62  # a text may contain commas

    def from_json(self, xs: list[Any], field: str) -> Matrix:
        try:
            x = to_array(xs)
        except UnicodeEncodeError:
            i = next(i for i, text in enumerate(xs) if not is_unicode(text))
            raise Invalid.at(location_of(field, i), "text_invalid", "must not contain lone surrogates") from None
        sizes = np.fromiter((len(stored) for (stored,) in x), np.int64, len(x))
        if len(x) and sizes.max() > MAX_TEXT_BYTES:
            message = f"has more than {MAX_TEXT_BYTES} bytes; shorten it or split it"
            raise Invalid.at(location_of(field, int(sizes.argmax())), "text_too_long", message)
        return x

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        return {name: pa.string() for name in ("x", COLUMN) if name in names}

    def check_columns(self, names: list[str], field: str) -> None:
        given = list(self.feature_columns(names))
        if len(given) != 1:
            problem = f"give either {COLUMN!r} or 'x', not both" if given else f"the column {COLUMN!r} is missing"
            raise shape_error((field,), problem)

    def from_columns(self, table: pa.Table, field: str) -> Matrix:
        """The column of texts. Null is an empty text: CSV cannot tell them apart."""
        [name] = self.feature_columns(table.column_names)
        column = table.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (columns.is_text(kind) or pa.types.is_null(kind)):
            raise Invalid.at((field, 0, name), "example_invalid", f"expected text, got {kind}")
        if pa.types.is_dictionary(column.type):  # Parquet: repeated texts
            for chunk in column.chunks:
                if (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) > MAX_TEXT_BYTES:
                    raise Invalid.at((field, 0, name), "text_too_long", f"a text has more than {MAX_TEXT_BYTES} bytes")
        return self.from_json([text or "" for text in column.to_pylist()], field)

    def to_json(self, x: Matrix, unseen: str | None = None) -> Any:
        return to_texts(x)[0]

    def to_columns(self, x: Matrix, unseen: Unseen | None = None) -> dict[str, pa.Array]:
        return {COLUMN: pa.array(to_texts(x), pa.string())}


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
