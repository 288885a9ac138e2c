"""A batch of examples as columns: what every format is parsed into, and what the database's bulk path takes."""

from __future__ import annotations

import hmac
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Split = bool | None
"""True: holdout, False: train, None: chosen by the id."""


@dataclass(frozen=True)
class Batch:
    """n examples that were checked against the model's spec."""

    ids: pa.StringArray
    """As Arrow keeps them, one after another: a Python object for each would cost more than the rest."""
    subjects: Sequence[bytes | None]
    """Keyed hashes."""
    x: NDArray[np.float32] | NDArray[np.uint8]
    """(n, numbers of one input), contiguous."""
    y: NDArray[np.float64]
    splits: Sequence[Split]
    layout: int = 0
    """Where the input or the target changed last, as far as the parser knew."""
    weights: NDArray[np.float64] | None = None
    """The weight of each example, NaN where none was given; None: none was given at all."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Sequence[int]) -> Batch:
        """The examples at `index`."""
        return Batch(
            self.ids.take(pa.array(index, pa.int64())),
            [self.subjects[i] for i in index],
            self.x[index],
            self.y[index],
            [self.splits[i] for i in index],
            self.layout,
            None if self.weights is None else self.weights[index],
        )

    @cached_property
    def stored_weights(self) -> NDArray[np.float64] | None:
        """The weights to be stored; None if all are 1."""
        if self.weights is None:
            return None
        found = np.where(np.isnan(self.weights), 1.0, self.weights)
        return found if (found != 1).any() else None

    def weights_or(self, otherwise: Sequence[float | None]) -> list[float]:
        """The weight of each example, another where it is not said; one where that is not, either."""
        given = [None] * len(self) if self.weights is None else self.weights.tolist()
        made = [other if own is None or math.isnan(own) else own for own, other in zip(given, otherwise, strict=True)]
        return [1.0 if weight is None else weight for weight in made]

    @cached_property
    def features(self) -> list[bytes]:
        """The bytes of each row of x."""
        data, size = self.x.tobytes(), self.x.shape[1] * self.x.itemsize
        return [data[i : i + size] for i in range(0, len(data), size)]

    @cached_property
    def draws(self) -> NDArray[np.uint64]:
        """A pseudorandom number for each example that depends on its id alone."""
        z = np.fromiter(map(crc32, self.ids.cast(pa.binary()).to_pylist()), np.uint64, len(self))
        # splitmix64 turns similar checksums into unrelated numbers: ids are often consecutive
        with np.errstate(over="ignore"):
            z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
        return mixed

    def holdouts(self, fraction: float) -> NDArray[np.bool_]:
        """(n,) which examples are in the holdout: by their split, or else by the draw of their id."""
        drawn: NDArray[np.bool_] = self.draws < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
        if self.splits.count(None) < len(self):
            chosen = [bool(d) if split is None else split for d, split in zip(drawn, self.splits, strict=True)]
            return np.array(chosen, bool)
        return drawn


def subject_hash(subject: str, secret: bytes, caseless: bool = False) -> bytes:
    """The only form in which a subject is stored; the same for what looks the same.

    With `caseless` also for what differs in case, or in width and the like: Unicode's compatibility caseless matching.

    >>> subject_hash("Jos\u00e9 ", b"key") == subject_hash("Jose\u0301", b"key")
    True
    >>> subject_hash("Stra\u00dfe \uff11", b"key", caseless=True) == subject_hash("STRASSE 1", b"key", caseless=True)
    True
    """
    seen = unicodedata.normalize("NFC", subject)
    if caseless:
        for _ in range(2):  # case folding can denormalize a text, and normalizing can undo the folding
            seen = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", seen).casefold())
    seen = seen.strip()
    return hmac.digest(secret, b"subject:" + seen.encode(), "sha256")


def subject_hashes(subjects: Sequence[str | None], secret: bytes, caseless: bool) -> list[bytes | None]:
    """One hash for each subject; repeated subjects are hashed once."""
    known: dict[str | None, bytes | None]
    known = {s: subject_hash(s, secret, caseless) for s in set(subjects) if s is not None}
    known[None] = None
    return [known[s] for s in subjects]
