"""Roots and proofs from stored subtrees agree with the recursive definitions of RFC 6962."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.register import merkle
from tests.naive_merkle import audit_path, subproof, tree_hash

SIZES = st.integers(0, 70)


class Tree:
    """Subtrees that were stored by appending one leaf after the other; counts what is read."""

    def __init__(self, size: int) -> None:
        self.leaves = [i.to_bytes(2) for i in range(size)]
        self.stored: dict[tuple[int, int], bytes] = {}
        self.reads = 0
        for i, data in enumerate(self.leaves):
            for level, index, value in merkle.grow(i, merkle.hash_leaf(data), self.nodes):
                self.stored[level, index] = value

    def nodes(self, level: int, index: int) -> bytes:
        self.reads += 1
        return self.stored[level, index]


TREE = Tree(70)


@given(SIZES)
def test_the_root_of_every_size_is_that_of_the_rfc(size: int) -> None:
    assert merkle.find_root(size, TREE.nodes) == tree_hash(TREE.leaves[:size])


@given(st.integers(1, 70), st.data())
def test_inclusion_proofs_are_those_of_the_rfc(size: int, data: st.DataObject) -> None:
    leaf = data.draw(st.integers(0, size - 1))
    assert merkle.prove_inclusion(leaf, size, TREE.nodes) == audit_path(leaf, TREE.leaves[:size])


@given(st.integers(1, 70), st.data())
def test_consistency_proofs_are_those_of_the_rfc(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, size))
    assert merkle.prove_consistency(old, size, TREE.nodes) == subproof(old, TREE.leaves[:size], True)


def test_an_empty_tree_is_extended_by_every_tree() -> None:
    assert merkle.prove_consistency(0, 5, TREE.nodes) == []


@pytest.mark.parametrize(("leaf", "size"), [(0, 0), (3, 3), (-1, 3)])
def test_a_leaf_outside_the_tree_has_no_proof(leaf: int, size: int) -> None:
    with pytest.raises(ValueError, match="not in a tree"):
        merkle.prove_inclusion(leaf, size, TREE.nodes)


def test_a_larger_tree_is_not_extended_by_a_smaller_one() -> None:
    with pytest.raises(ValueError, match="does not extend"):
        merkle.prove_consistency(4, 3, TREE.nodes)


def test_appending_and_proving_read_a_logarithmic_number_of_subtrees() -> None:
    tree = Tree(1023)
    assert tree.reads < 1023  # one for each inner node
    assert len(tree.stored) < 2 * 1023
    for prove in (lambda: merkle.prove_inclusion(511, 1023, tree.nodes), lambda: merkle.find_root(1023, tree.nodes)):
        tree.reads = 0
        prove()
        assert tree.reads <= 2 * 10
