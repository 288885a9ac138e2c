"""Merkle trees as in RFC 6962: verification of inclusion and consistency proofs, and the root of a list of leaves.

The algorithms are those of RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

import hashlib
from collections.abc import Iterable, Sequence

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(content: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def includes(root: bytes, size: int, index: int, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Whether a path proves that the tree of `size` leaves with this root has this leaf hash at `index`.

    >>> left, right = leaf_hash(b"a"), leaf_hash(b"b")
    >>> includes(node_hash(left, right), 2, 1, right, [left]), includes(node_hash(left, right), 2, 0, right, [left])
    (True, False)
    """
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def extends(old_root: bytes, old_size: int, new_root: bytes, new_size: int, path: Sequence[bytes]) -> bool:
    """Whether a path proves that the tree of `new_size` leaves starts with the leaves of the old tree.

    >>> old, new = leaf_hash(b"a"), leaf_hash(b"b")
    >>> extends(old, 1, node_hash(old, new), 2, [new]), extends(old, 1, node_hash(new, old), 2, [new])
    (True, False)
    """
    if not 0 <= old_size <= new_size:
        return False
    if old_size == new_size:
        return not path and old_root == new_root
    if old_size == 0:
        return not path and old_root == EMPTY_ROOT
    proof = list(path)
    if old_size & (old_size - 1) == 0:  # the old tree is complete, and its root a node of the new one
        proof.insert(0, old_root)
    if not proof:
        return False
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def root_of(contents: Iterable[bytes]) -> bytes:
    """The root of the tree whose leaves have these contents.

    >>> root_of([b"a", b"b", b"c"]) == node_hash(node_hash(leaf_hash(b"a"), leaf_hash(b"b")), leaf_hash(b"c"))
    True
    """
    # complete subtrees from left to right, as in a binary counter: each is larger than the next
    complete: list[tuple[int, bytes]] = []
    for content in contents:
        size, node = 1, leaf_hash(content)
        while complete and complete[-1][0] == size:
            node = node_hash(complete.pop()[1], node)
            size *= 2
        complete.append((size, node))
    if not complete:
        return EMPTY_ROOT
    _, root = complete.pop()
    while complete:
        root = node_hash(complete.pop()[1], root)
    return root
