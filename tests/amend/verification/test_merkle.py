"""Verification of proofs, compared with the recursive definitions of RFC 6962."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amend.verification import merkle
from tests.naive_merkle import audit_path, consistency_proof, tree_hash

LEAVES = [sha256(b"%d" % i).digest() for i in range(40)]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 31, 32, 33)


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_is_proven_at_its_own_place_only(size: int) -> None:
    leaves, root = LEAVES[:size], tree_hash(LEAVES[:size])
    assert merkle.root_of(leaves) == root
    for i in range(size):
        path, leaf = audit_path(i, leaves), merkle.leaf_hash(leaves[i])
        assert merkle.includes(root, size, i, leaf, path)
        assert not any(merkle.includes(root, size, j, leaf, path) for j in range(size + 1) if j != i)
        assert not merkle.includes(root, size, i, merkle.leaf_hash(b"other"), path)
        assert not merkle.includes(root, size, i, leaf, [*path, root])
        assert not path or not merkle.includes(root, size, i, leaf, path[:-1])


@pytest.mark.parametrize("size", SIZES)
def test_extensions_are_proven_for_every_earlier_size(size: int) -> None:
    root = tree_hash(LEAVES[:size])
    assert merkle.extends(tree_hash([]), 0, root, size, [])
    for old in range(1, size + 1):
        path, old_root = consistency_proof(old, LEAVES[:size]), tree_hash(LEAVES[:old])
        assert merkle.extends(old_root, old, root, size, path)
        forked = tree_hash([*LEAVES[: old - 1], b"forged"])
        assert not merkle.extends(forked, old, root, size, path)
        assert not merkle.extends(old_root, old, sha256(root).digest(), size, path)
        assert not merkle.extends(old_root, old, root, size, [*path, root])


@given(st.integers(0, 40), st.integers(0, 40), st.lists(st.sampled_from(LEAVES), max_size=8))
def test_arbitrary_paths_prove_nothing(old: int, new: int, path: list[bytes]) -> None:
    forked = tree_hash([b"forged", *LEAVES[: max(old - 1, 0)]])
    assert not merkle.extends(forked, old, tree_hash(LEAVES[:new]), new, path)
    assert not merkle.includes(tree_hash(LEAVES[:new]), new, old, merkle.leaf_hash(b"forged"), path)
