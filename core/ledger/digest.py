"""A digest of a set of examples, kept up to date as they come and go.

The digest of a set is the sum of its examples' keyed hashes modulo 2^256 (a set hash as in Bellare & Micciancio,
*A New Paradigm for Collision-Free Hashing*, 1997). Whoever adds and removes the same examples in whatever order gets
the same digest: an adapted version and a retrain at the same position must agree, or one of them read other data.
Keyed, because the difference of two digests is the hash of what was removed: without a key it could be guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from core.kprior import Data, Examples

SIZE = 2**256
EMPTY = "0" * 64


def changed(secret: bytes, digest: str, added: Data = (), removed: Data = ()) -> str:
    """The digest of a set after examples came and went."""
    total = int(digest, 16)
    for chunk in added:
        total += summed(secret, chunk)
    for chunk in removed:
        total -= summed(secret, chunk)
    return f"{total % SIZE:064x}"


def summed(secret: bytes, examples: Examples) -> int:
    """The sum over examples: each is its position, target and input."""
    y = examples.y.argmax(1).double() if examples.y.shape[1] > 1 else examples.y[:, 0].double()
    head = np.empty(len(examples), [("position", "<i8"), ("y", "<f8")])
    head["position"], head["y"] = examples.key.numpy(), y.numpy()
    heads, x = head.tobytes(), np.ascontiguousarray(examples.x.numpy()).tobytes()
    width = len(x) // max(1, len(examples))
    empty, total = hashlib.blake2b(key=hashlib.sha512(b"dataset:" + secret).digest(), digest_size=32), 0
    for i in range(len(examples)):
        one = empty.copy()
        one.update(heads[16 * i : 16 * i + 16])
        one.update(x[width * i : width * (i + 1)])
        total += int.from_bytes(one.digest(), "little")
    return total


class Digesting:
    """Data that is digested while somebody reads it for the first time."""

    def __init__(self, secret: bytes, data: Data) -> None:
        self.secret, self.data = secret, data
        self.digest: str | None = None

    def __iter__(self) -> Iterator[Examples]:
        if self.digest is not None:
            yield from self.data
            return
        total = 0
        for chunk in self.data:
            total += summed(self.secret, chunk)
            yield chunk
        self.digest = f"{total % SIZE:064x}"
