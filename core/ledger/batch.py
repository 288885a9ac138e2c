"""A batch of examples as columns: what every format is parsed into, and what the database's bulk path takes."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Split = bool | None
"""True: holdout, False: train, None: chosen by the id."""


@dataclass(frozen=True)
class Batch:
    """n examples that are checked against the model's spec."""

    ids: Sequence[str]
    subjects: Sequence[bytes | None]
    """Keyed hashes."""
    x: NDArray[np.float32] | NDArray[np.uint8]
    """(n, numbers of one input), contiguous."""
    y: NDArray[np.float64]
    splits: Sequence[Split]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Sequence[int]) -> Batch:
        """The examples at `index`."""
        return Batch(
            [self.ids[i] for i in index],
            [self.subjects[i] for i in index],
            self.x[index],
            self.y[index],
            [self.splits[i] for i in index],
        )

    def features(self) -> list[bytes]:
        """The bytes of each row of x."""
        data, size = self.x.tobytes(), self.x.shape[1] * self.x.itemsize
        return [data[i : i + size] for i in range(0, len(data), size)]

    def holdouts(self, share: float) -> list[bool]:
        """Which examples are held out, those without a split by the hash of their id.

        The same for the same id, whoever asks and whenever.
        """
        # bytes compare as the numbers they are
        limit = min(int(share * 2**64), 2**64 - 1).to_bytes(8, "big")
        return [
            blake2b(id_.encode(), digest_size=8).digest() < limit if split is None else split
            for id_, split in zip(self.ids, self.splits, strict=True)
        ]


def subject_hash(subject: str, secret: bytes) -> bytes:
    """The only form in which a subject is stored."""
    return hmac.digest(secret, b"subject:" + subject.encode(), "sha256")


def subject_hashes(subjects: Sequence[str | None], secret: bytes) -> list[bytes | None]:
    """One hash for each subject; repeated subjects are hashed once."""
    known: dict[str | None, bytes | None] = {s: subject_hash(s, secret) for s in set(subjects) if s is not None}
    known[None] = None
    return [known[s] for s in subjects]
