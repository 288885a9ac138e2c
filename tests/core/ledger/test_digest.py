"""The digest of a set of examples depends only on the set."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.database import Database
from core.kprior import Examples
from core.kprior.passes.accumulator import Combined
from core.ledger import passes
from core.ledger.digest import EMPTY, SIZE, Digest, DigestedData, update_digest
from tests.core.kprior.problems import ShardedExamples
from tests.core.ledger.reference_ledger import SECRET, Row, add, new_model, remove, stored

KEYS = st.lists(st.integers(1, 1000), unique=True, max_size=30)


def examples(keys: list[int], classes: int = 1) -> Examples:
    """An example for each key, the same for the same key."""
    key = torch.tensor(keys, dtype=torch.int64)
    x = torch.stack([key.float() / 7, -key.float()], 1).reshape(len(keys), 2)
    y = (key % max(2, classes)).double()[:, None]
    if classes > 1:
        y = torch.nn.functional.one_hot(key % classes, classes).double().reshape(len(keys), classes)
    return Examples(key, x, y)


def digest(keys: list[int]) -> str:
    return update_digest(SECRET, EMPTY, [examples(keys)] if keys else [])


def test_the_digest_is_the_sum_of_keyed_hashes() -> None:
    key_of_all = hashlib.sha512(b"dataset:" + SECRET).digest()

    def single(key: int) -> int:
        x = torch.tensor([key], dtype=torch.float32)
        data = struct.pack("<qd", key, key % 2) + (x / 7).numpy().tobytes() + (-x).numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(data, key=key_of_all, digest_size=32).digest(), "little")

    assert digest([3, 8]) == f"{(single(3) + single(8)) % SIZE:064x}"


@given(KEYS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_digest_depends_neither_on_order_nor_on_chunks(keys: list[int], random: object, size: int) -> None:
    shuffled = keys.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    chunks = [examples(shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
    assert update_digest(SECRET, EMPTY, chunks) == digest(keys)


@given(KEYS, KEYS)
def test_adding_and_removing_an_example_restores_the_digest(keys: list[int], others: list[int]) -> None:
    more = [key for key in others if key not in keys]
    both = update_digest(SECRET, digest(keys), [examples(more)] if more else [])
    assert both == digest(keys + more)
    assert update_digest(SECRET, both, (), [examples(more)] if more else []) == digest(keys)


@given(KEYS, KEYS)
def test_adding_and_removing_at_once_gives_the_digest_of_the_remaining_examples(
    keys: list[int], others: list[int]
) -> None:
    gone, new = keys[: len(keys) // 2], [key for key in others if key not in keys]
    left = keys[len(gone) :] + new
    after = update_digest(SECRET, digest(keys), [examples(new)] if new else [], [examples(gone)] if gone else [])
    assert after == digest(left)


@given(KEYS.filter(bool))
def test_removing_an_example_changes_the_digest(keys: list[int]) -> None:
    assert digest(keys) != digest(keys[1:])


def test_a_changed_input_target_or_position_changes_the_digest() -> None:
    one = examples([5, 6])
    x, y = one.x.clone(), one.y.clone()
    x[0, 0] += 1e-6
    y[1, 0] += 1
    changes = [Examples(one.key, x, one.y), Examples(one.key, one.x, y), Examples(one.key + 1, one.x, one.y)]
    assert len({update_digest(SECRET, EMPTY, [rows]) for rows in (one, *changes)}) == 4


def test_the_digest_hashes_the_index_of_the_class() -> None:
    one, other = examples([5, 6], classes=3), examples([5, 6], classes=3)
    assert update_digest(SECRET, EMPTY, [one]) == update_digest(SECRET, EMPTY, [other])
    turned = Examples(one.key, one.x, one.y.flip(0))
    assert update_digest(SECRET, EMPTY, [one]) != update_digest(SECRET, EMPTY, [turned])


def test_the_digest_of_no_examples_is_zero() -> None:
    assert update_digest(SECRET, EMPTY) == EMPTY == update_digest(SECRET, EMPTY, [], [])


def test_the_digest_is_computed_during_the_first_pass() -> None:
    data = DigestedData(SECRET, ShardedExamples([[examples([1, 2])], [examples([3])]]))
    assert data.digest is None
    assert [len(chunk) for chunk in data] == [2, 1]
    assert data.digest == digest([1, 2, 3])
    assert [len(chunk) for chunk in data] == [2, 1]
    assert data.digest == digest([1, 2, 3])


def test_an_incomplete_pass_gives_no_digest() -> None:
    data = DigestedData(SECRET, ShardedExamples([[examples([1, 2])], [examples([3])]]))
    next(iter(data))
    assert data.digest is None
    assert sum(len(chunk) for chunk in data) == 3
    assert data.digest == digest([1, 2, 3])


def test_a_distributed_pass_computes_the_digest_too() -> None:
    data = DigestedData(SECRET, ShardedExamples([[examples([1, 2])], [examples([3])]]))
    other = Digest(SECRET)
    assert data.accumulate(other) is other
    assert data.digest == f"{other.total:064x}" == digest([1, 2, 3])
    both = data.accumulate(Combined(Digest(SECRET), Digest(SECRET)))
    assert [f"{total.total:064x}" for total in both.totals] == [data.digest] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", [{"kind": "number"}, {"kind": "classes", "values": ["a", "b", "c"]}])
def test_updating_the_digest_with_changes_equals_the_digest_of_the_examples_in_force(
    database: Database, target: dict[str, object]
) -> None:
    model = new_model(database, target=target)
    add(database, model, [Row(f"r{i}", x=(i, -i), y=i % 3, split=i % 4 == 0) for i in range(20)])
    since = stored(database, model).head
    before = update_digest(SECRET, EMPTY, passes.read_in_force(database, model.id, model.spec, since))
    add(database, model, [Row(f"s{i}", x=(0.1, i), y=i % 3, split=False) for i in range(10)])
    remove(database, model, ["r0", "r1", "r2", "s3", "s4"])
    add(database, model, [Row("r1", x=(1, -1), y=1, split=False)])  # back, at another position
    at = stored(database, model).head
    added = passes.read_added(database, model.id, model.spec, since, at)
    removed = passes.read_removed(database, model.id, model.spec, since, at)
    assert update_digest(SECRET, before, added, removed) == update_digest(
        SECRET, EMPTY, passes.read_in_force(database, model.id, model.spec, at)
    )
    assert update_digest(SECRET, before, added, removed) != before
