"""Which examples are in the holdout: those whose split says so and, where no split is given, those that are drawn.

All examples of a subject are drawn together, by the keyed hash of the subject, so that no person is in both sets;
examples without a subject, and all examples if the policy says so, are drawn by their id. The draw depends on nothing
else, so a repeated request gets the same split.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Split = bool | None
"""True: holdout, False: train, None: drawn."""


def draw_numbers(ids: pa.StringArray) -> NDArray[np.uint64]:
    """(n,) a pseudorandom number for each id."""
    z = np.fromiter(map(crc32, ids.cast(pa.binary()).to_pylist()), np.uint64, len(ids))
    # splitmix64 turns similar checksums into unrelated numbers: ids are often consecutive
    with np.errstate(over="ignore"):
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def draw_by_subject(numbers: NDArray[np.uint64], subjects: Sequence[bytes | None]) -> NDArray[np.uint64]:
    """(n,) the same numbers, except that all rows of a subject have the number of the subject."""
    rows = [i for i, subject in enumerate(subjects) if subject is not None]
    if not rows:
        return numbers
    drawn = numbers.copy()
    drawn[rows] = np.frombuffer(b"".join(subject[:8] for subject in subjects if subject is not None), ">u8")
    return drawn


def choose_holdout(numbers: NDArray[np.uint64], splits: Sequence[Split], fraction: float) -> NDArray[np.bool_]:
    """(n,) which examples are in the holdout, given their splits and the policy's holdout fraction."""
    drawn: NDArray[np.bool_] = numbers < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
    if splits.count(None) < len(splits):
        chosen = [bool(d) if split is None else split for d, split in zip(drawn, splits, strict=True)]
        return np.array(chosen, bool)
    return drawn
