"""Texts as inputs: arrays of bytes, in the form in which the ledger stores them.

A stored text ends with a zero byte, so that an empty text is a value: rows without any bytes are purged rows.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

END = b"\0"


def to_array(texts: Iterable[str]) -> NDArray[Any]:
    """(n, 1) stored texts.

    >>> to_array(["Hello", ""]).tolist()
    [[b'Hello\\x00'], [b'\\x00']]
    """
    stored = [text.encode() + END for text in texts]
    made = np.empty((len(stored), 1), object)
    made[:, 0] = stored
    return made


def to_texts(x: NDArray[Any]) -> list[str]:
    """The texts of an array of stored texts.

    >>> to_texts(to_array(["Hello", ""]))
    ['Hello', '']
    """
    return [stored[: -len(END)].decode() for stored in x.reshape(-1).tolist()]
