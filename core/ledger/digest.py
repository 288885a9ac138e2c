"""A digest of a set of examples, updated as examples are added and removed.

The digest of a set is the sum of its examples' keyed hashes modulo 2^256 (a set hash as in Bellare & Micciancio,
*A New Paradigm for Collision-Free Hashing*, 1997). It does not depend on the order of additions and removals: an
adapted version and a retrain at the same position must have the same digest, or one of them has read different data.
The hashes are keyed because the difference of two digests is the hash of a removed example, which could be guessed.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from core.kprior import Data, Examples
from core.kprior.data.codec import Tensors
from core.kprior.passes.accumulator import A, Accumulator, Combined
from core.kprior.passes.partitioned import PartitionedData, accumulate
from core.ledger.layouts import ConvertedExamples

SIZE = 2**256
EMPTY = "0" * 64


def update_digest(secret: bytes, digest: str, added: Data = (), removed: Data = ()) -> str:
    """The digest of a set after examples were added and removed."""
    plus, minus = accumulate(added, Digest(secret)), accumulate(removed, Digest(secret))
    return f"{(int(digest, 16) + plus.total - minus.total) % SIZE:064x}"


def sum_hashes(secret: bytes, examples: Examples) -> int:
    """The sum of the hashes of each example's position, target, input and, unless it is 1, weight."""
    if isinstance(examples, ConvertedExamples):
        return sum_stored(secret, examples)
    y = examples.y.argmax(1).double() if examples.y.shape[1] > 1 else examples.y[:, 0].double()
    head = np.empty(len(examples), [("position", "<i8"), ("y", "<f8")])
    head["position"], head["y"] = examples.key.numpy(), y.numpy()
    heads, x = head.tobytes(), np.ascontiguousarray(examples.x.numpy()).tobytes()
    width, weights = len(x) // max(1, len(examples)), weight_bytes(examples)
    empty, total = hashlib.blake2b(key=hashlib.sha512(b"dataset:" + secret).digest(), digest_size=32), 0
    for i in range(len(examples)):
        one = empty.copy()
        one.update(heads[16 * i : 16 * i + 16])
        one.update(x[width * i : width * (i + 1)])
        one.update(weights[i])
        total += int.from_bytes(one.digest(), "little")
    return total


def sum_stored(secret: bytes, examples: ConvertedExamples) -> int:
    """The same for converted rows, hashed as they are stored: a change of columns does not change the digest."""
    assert examples.stored is not None
    assert examples.sizes is not None
    empty, total = hashlib.blake2b(key=hashlib.sha512(b"dataset:" + secret).digest(), digest_size=32), 0
    rows = zip(examples.key.tolist(), examples.stored.numpy(), examples.sizes.tolist(), strict=True)
    for (position, stored, size), weight in zip(rows, weight_bytes(examples), strict=True):
        one = empty.copy()
        one.update(position.to_bytes(8, "little"))
        one.update(stored[:size].tobytes())
        one.update(weight)
        total += int.from_bytes(one.digest(), "little")
    return total


def weight_bytes(examples: Examples) -> Sequence[bytes]:
    """The bytes of each example's weight that are hashed; empty if it is 1."""
    if examples.weight is None:
        return [b""] * len(examples)
    return [b"" if weight == 1 else struct.pack("<d", weight) for weight in examples.weight.tolist()]


class Digest(Accumulator):
    """The digest of the rows of a pass. Every process that reads one of its shards needs the secret."""

    kind = "digest"
    work = 20_000.0  # roughly the cost of one hash

    def __init__(self, secret: bytes) -> None:
        self.secret, self.total = secret, 0

    def empty(self) -> Self:
        return type(self)(self.secret)

    def add(self, chunk: Examples) -> None:
        self.total = (self.total + sum_hashes(self.secret, chunk)) % SIZE

    def sums(self) -> Tensors:
        return {"total": torch.tensor(list(self.total.to_bytes(32, "little")), dtype=torch.uint8)}

    def merge(self, sums: Tensors) -> None:
        self.total = (self.total + int.from_bytes(bytes(sums["total"].tolist()), "little")) % SIZE

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        return {}, {}


class DigestedData(PartitionedData):
    """Data whose digest is computed when it is read for the first time."""

    def __init__(self, secret: bytes, data: PartitionedData) -> None:
        self.secret, self.data = secret, data
        self.digest: str | None = None

    def shards(self) -> Sequence[Data]:
        shards = self.data.shards()
        if self.digest is not None:
            return shards
        total = Digest(self.secret)
        return [DigestedShard(self, total, shard, last=shard is shards[-1]) for shard in shards]

    def rows(self, key: Tensor) -> Examples:
        return self.data.rows(key)

    def is_distributed(self, total: Accumulator) -> bool:
        return self.data.is_distributed(total if self.digest is not None else Combined(total, Digest(self.secret)))

    def accumulate(self, total: A) -> A:
        if self.digest is not None:
            return self.data.accumulate(total)
        digest = Digest(self.secret)
        self.data.accumulate(Combined(total, digest))
        self.finish(digest)
        return total

    def finish(self, digest: Digest) -> None:
        self.digest = f"{digest.total:064x}"


class DigestedShard:
    """A shard of digested data; the shards of one pass share a digest, and the last one completes it."""

    def __init__(self, whole: DigestedData, digest: Digest, part: Data, last: bool) -> None:
        self.whole, self.digest, self.part, self.last = whole, digest, part, last

    def __iter__(self) -> Iterator[Examples]:
        for chunk in self.part:
            self.digest.add(chunk)
            yield chunk
        if self.last:
            self.whole.finish(self.digest)
