"""The Merkle tree of RFC 6962, over stored hashes of complete subtrees.

`nodes(level, index)` returns the hash of the complete subtree of 2^level leaves that begins at leaf index * 2^level.
These hashes never change, so appending a leaf writes two of them on average, and a proof reads O(log n).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence

Nodes = Callable[[int, int], bytes]
EMPTY_ROOT = hashlib.sha256().digest()


def hash_leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def grow(index: int, leaf: bytes, nodes: Nodes) -> list[tuple[int, int, bytes]]:
    """The subtrees that leaf number `index` completes, as (level, index, hash); the first is the leaf itself."""
    level, complete = 0, [(0, index, leaf)]
    while index % 2:
        leaf = hash_node(nodes(level, index - 1), leaf)
        level, index = level + 1, index // 2
        complete.append((level, index, leaf))
    return complete


def find_root(size: int, nodes: Nodes) -> bytes:
    """The root of the tree of the first `size` leaves."""
    return hash_range(0, size, nodes) if size else EMPTY_ROOT


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root of a tree over data that is at hand."""
    level = [hash_leaf(data) for data in leaves]
    while len(level) > 1:
        # a last hash without a partner moves up unchanged, which gives the splits of RFC 6962
        above = [hash_node(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = above + level[len(level) & ~1 :]
    return level[0] if level else EMPTY_ROOT


def hash_range(first: int, end: int, nodes: Nodes) -> bytes:
    """The hash of the leaves from `first` to before `end`, a range that RFC 6962 reaches by splitting a tree."""
    count = end - first
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return nodes(level, first >> level)
    middle = first + split(count)
    return hash_node(hash_range(first, middle, nodes), hash_range(middle, end, nodes))


def split(count: int) -> int:
    """The largest power of two below `count`.

    >>> [split(n) for n in (2, 3, 4, 5)]
    [1, 2, 2, 4]
    """
    return 1 << ((count - 1).bit_length() - 1)


def prove_inclusion(leaf: int, size: int, nodes: Nodes) -> list[bytes]:
    """The audit path of a leaf in the tree of the first `size` leaves (RFC 6962, 2.1.1)."""
    if not 0 <= leaf < size:
        raise ValueError(f"Leaf {leaf} is not in a tree of {size}.")
    path, first, end = [], 0, size
    while end - first > 1:
        middle = first + split(end - first)
        if leaf < middle:
            path.append(hash_range(middle, end, nodes))
            end = middle
        else:
            path.append(hash_range(first, middle, nodes))
            first = middle
    return path[::-1]


def follow(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root that the audit path of a leaf hash leads to. Raises ValueError if the path has another length."""
    if not 0 <= index < size or (size == 1 and path):
        raise ValueError(f"This is not a path of leaf {index} in a tree of {size}.")
    if size == 1:
        return leaf
    *rest, last = path
    middle = split(size)
    if index < middle:
        return hash_node(follow(leaf, index, middle, rest), last)
    return hash_node(last, follow(leaf, index - middle, size - middle, rest))


def prove_consistency(old: int, size: int, nodes: Nodes) -> list[bytes]:
    """The proof that the tree of `size` leaves extends that of the first `old` leaves (RFC 6962, 2.1.2).

    Empty if both are the same, and for an empty old tree, which every tree extends.
    """
    if not 0 <= old <= size:
        raise ValueError(f"A tree of {size} leaves does not extend one of {old}.")
    if old in (0, size):
        return []
    path, first, end, whole = [], 0, size, True
    while old != end:
        middle = first + split(end - first)
        if old <= middle:
            path.append(hash_range(middle, end, nodes))
            end = middle
        else:
            path.append(hash_range(first, middle, nodes))
            first, whole = middle, False
    return [*([] if whole else [hash_range(first, end, nodes)]), *path[::-1]]
