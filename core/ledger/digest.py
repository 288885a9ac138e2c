"""A digest of a set of examples, kept up to date as they come and go.

The digest of a set is the sum of its examples' SHA-256 sums modulo 2^256 (a set hash as in Bellare & Micciancio,
*A New Paradigm for Collision-Free Hashing*, 1997). Whoever adds and removes the same examples in whatever order gets
the same digest: an adapted version and a retrain at the same position must agree, or one of them read other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from core.kprior import Data, Examples

SIZE = 2**256
EMPTY = "0" * 64


def changed(digest: str, added: Data = (), removed: Data = ()) -> str:
    """The digest of a set after examples came and went."""
    total = int(digest, 16)
    for chunk in added:
        total += summed(chunk)
    for chunk in removed:
        total -= summed(chunk)
    return f"{total % SIZE:064x}"


def summed(examples: Examples) -> int:
    """The sum over examples: each is its position, target and input."""
    y = examples.y.argmax(1).double() if examples.y.shape[1] > 1 else examples.y[:, 0].double()
    head = np.empty(len(examples), [("position", "<i8"), ("y", "<f8")])
    head["position"], head["y"] = examples.key.numpy(), y.numpy()
    heads, x = head.tobytes(), np.ascontiguousarray(examples.x.numpy()).tobytes()
    width = len(x) // max(1, len(examples))
    total = 0
    for i in range(len(examples)):
        sha = hashlib.sha256(heads[16 * i : 16 * i + 16])
        sha.update(x[width * i : width * (i + 1)])
        total += int.from_bytes(sha.digest(), "little")
    return total


class Digesting:
    """Data that is digested while somebody reads it for the first time."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.digest: str | None = None

    def __iter__(self) -> Iterator[Examples]:
        if self.digest is not None:
            yield from self.data
            return
        total = 0
        for chunk in self.data:
            total += summed(chunk)
            yield chunk
        self.digest = f"{total % SIZE:064x}"
