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

HASH_BYTES = 32
SIZE = 2 ** (8 * HASH_BYTES)
EMPTY = "0" * 64


def update_digest(secret: bytes, digest: str, added: Data = (), removed: Data = ()) -> str:
    """The digest of a set after examples were added and removed."""
    plus, minus = accumulate(added, Digest(secret)), accumulate(removed, Digest(secret))
    return f"{(int(digest, 16) + plus.total - minus.total) % SIZE:064x}"


def sum_hashes(secret: bytes, examples: Examples) -> int:
    """The sum of the hashes of each example's position, target, input and, unless it is 1, weight."""
    if isinstance(examples, ConvertedExamples):
        return sum_stored(secret, examples)
    if len(examples) == 0:
        return 0
    y = examples.y.argmax(1).double() if examples.y.shape[1] > 1 else examples.y[:, 0].double()
    head = np.empty(len(examples), [("position", "<i8"), ("y", "<f8")])
    head["position"], head["y"] = examples.key.numpy(), y.numpy()
    x = np.ascontiguousarray(examples.x.numpy()).reshape(len(examples), -1).view(np.uint8)
    rows = np.concatenate([head.view(np.uint8).reshape(len(examples), -1), x], 1)
    width, data, weights = rows.shape[1], rows.tobytes(), weight_bytes(examples)
    empty, hashes = keyed_hash(secret), bytearray()
    for i, start in enumerate(range(0, len(data), width)):
        one = empty.copy()
        one.update(data[start : start + width])
        if weights is not None and weights[i]:
            one.update(weights[i])
        hashes += one.digest()
    return add_up(hashes)


def keyed_hash(secret: bytes) -> Any:
    """The hash of nothing, which is copied for each example."""
    return hashlib.blake2b(key=hashlib.sha512(b"dataset:" + secret).digest(), digest_size=HASH_BYTES)


def add_up(hashes: bytes | bytearray) -> int:
    """The sum of hashes, each a little-endian number of HASH_BYTES bytes.

    >>> add_up(bytes(31) + b"\\x01" + b"\\x02" + bytes(31)) == 2**248 + 2
    True
    """
    lanes = np.frombuffer(hashes, "<u4").reshape(-1, HASH_BYTES // 4).sum(0, dtype=np.uint64)
    return sum(int(total) << 32 * i for i, total in enumerate(lanes))


def sum_stored(secret: bytes, examples: ConvertedExamples) -> int:
    """The same for converted rows, hashed as they are stored: a change of columns does not change the digest."""
    assert examples.stored is not None
    assert examples.sizes is not None
    empty, hashes, weights = keyed_hash(secret), bytearray(), weight_bytes(examples)
    rows = zip(examples.key.tolist(), examples.stored.numpy(), examples.sizes.tolist(), strict=True)
    for i, (position, stored, size) in enumerate(rows):
        one = empty.copy()
        one.update(position.to_bytes(8, "little"))
        one.update(stored[:size].tobytes())
        if weights is not None and weights[i]:
            one.update(weights[i])
        hashes += one.digest()
    return add_up(hashes)


def weight_bytes(examples: Examples) -> Sequence[bytes] | None:
    """The bytes of each example's weight that are hashed, empty if it is 1; None if all are."""
    if examples.weight is None:
        return None
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

    def head(self, count: int) -> Examples | None:
        return self.data.head(count)

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
