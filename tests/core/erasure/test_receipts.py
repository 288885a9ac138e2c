"""The chain of receipts: whatever becomes of any of them shows."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from core.database import Database
from core.erasure import receipts
from core.erasure.receipts import START, Flaw, append, chain, find_flaws, hash_of, verify
from core.tables.erasures import Receipt
from core.versions.store import Store

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcde", max_size=3), inner, max_size=3),
    max_leaves=5,
)
CONTENTS = st.fixed_dictionaries({"statement": VALUES, "models": st.lists(VALUES, max_size=2)})


def link(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chain as `append` makes it."""
    bodies: list[dict[str, Any]] = []
    for number, content in enumerate(contents, 1):
        body = {"number": number, "erasure": f"e{number}", **content}
        body["previous"] = bodies[-1]["sha256"] if bodies else START
        bodies.append({**body, "sha256": hash_of(body)})
    return bodies


def spell(body: Any) -> str:
    """JSON tells apart what Python does not: 1, 1.0 and true."""
    return json.dumps(body, sort_keys=True)


CHAINS = st.lists(CONTENTS, min_size=1, max_size=4).map(link)


@given(CHAINS)
def test_a_chain_as_it_was_made_has_no_flaw(bodies: list[dict[str, Any]]) -> None:
    assert find_flaws(bodies) == []
    assert find_flaws(json.loads(json.dumps(bodies))) == []


@given(CHAINS, st.data())
def test_any_change_of_any_word_of_any_receipt_is_found(bodies: list[dict[str, Any]], data: st.DataObject) -> None:
    altered = copy.deepcopy(bodies)
    body = altered[data.draw(st.integers(0, len(bodies) - 1))]
    name = data.draw(st.sampled_from([*body, "added"]))
    if data.draw(st.booleans()) and name in body:
        del body[name]
    else:
        body[name] = data.draw(VALUES)
    if spell(altered) != spell(bodies):
        assert find_flaws(altered)


@given(CHAINS, st.data())
def test_a_receipt_that_is_altered_and_hashed_anew_breaks_the_next(
    bodies: list[dict[str, Any]], data: st.DataObject
) -> None:
    altered = copy.deepcopy(bodies)
    place = data.draw(st.integers(0, len(bodies) - 1))
    altered[place]["statement"] = "another"
    altered[place]["sha256"] = hash_of(altered[place])
    if spell(altered) != spell(bodies) and place < len(bodies) - 1:
        assert [flaw.number for flaw in find_flaws(altered)] == [place + 2]


@given(CHAINS, st.data())
def test_a_missing_receipt_is_named(bodies: list[dict[str, Any]], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(bodies) - 1))
    left = bodies[:place] + bodies[place + 1 :]
    if place < len(bodies) - 1:  # of the last, only its file or a hash that somebody kept can tell
        assert Flaw(place + 1, f"missing: receipt {place + 2} follows instead") in find_flaws(left)


@given(st.lists(CONTENTS, min_size=2, max_size=4).map(link), st.randoms(use_true_random=False))
def test_another_order_is_found(bodies: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(bodies, len(bodies))
    assert bool(find_flaws(shuffled)) == (shuffled != bodies)


def enter(database: Database, *contents: dict[str, Any]) -> None:
    for number, content in enumerate(contents, 1):
        with database.write() as session:
            append(session, f"e{number}", content)


PLAIN = ({"statement": "one"}, {"statement": "two"}, {"statement": "three"})


def verify_chain(database: Database, store: Store) -> list[Flaw]:
    with database.read() as session:
        return verify(session, store)


def test_receipts_come_back_as_they_were_made(empty_database: Database, tmp_path: Path) -> None:
    """Numbers of any size and sign among them: a database that spells a number otherwise would break the hash."""
    numbers = [0.0, -0.0, 1.0, 1e-7, 5e-324, 0.1 + 0.2, 1e16, 1.5e22, 1.7976931348623157e308, 2**60, -1, True, None]
    enter(empty_database, {"numbers": numbers, "words": 'ä \\ " \u2028 <b> 🙂'}, {"numbers": {}})
    assert verify_chain(empty_database, Store(str(tmp_path))) == []


def test_files_are_written_once_and_agree(empty_database: Database, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    assert receipts.file_missing(empty_database, store) == 3
    assert receipts.file_missing(empty_database, store) == 0
    with empty_database.read() as session:
        assert list(receipts.read_files(store).values()) == chain(session)
    assert verify_chain(empty_database, store) == []


def test_receipts_written_at_the_same_time_make_one_chain(empty_database: Database, tmp_path: Path) -> None:
    def write(i: int) -> None:
        with empty_database.write() as session:
            append(session, f"t{i}", {"statement": str(i)})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with empty_database.read() as session:
        assert [body["number"] for body in chain(session)] == list(range(1, 13))
    assert verify_chain(empty_database, Store(str(tmp_path))) == []


def alter(database: Database, number: int, **columns: Any) -> None:
    with database.write() as session:
        row = session.get_one(Receipt, number)
        for name, value in columns.items():
            setattr(row, name, value)


def body_of(database: Database, number: int) -> dict[str, Any]:
    with database.read() as session:
        return dict(session.scalars(select(Receipt.body).where(Receipt.number == number)).one())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_altered_row_is_found(empty_database: Database, tmp_path: Path, number: int) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    body = {**body_of(empty_database, number), "statement": "never happened"}
    alter(empty_database, number, body=body)
    assert number in {flaw.number for flaw in verify_chain(empty_database, store)}
    body["sha256"] = hash_of(body)
    alter(empty_database, number, body=body)
    assert number in {flaw.number for flaw in verify_chain(empty_database, store)}
    alter(empty_database, number, sha256=body["sha256"])
    # the last of a chain that is made anew from end to end shows only against its file
    assert bool(verify_chain(empty_database, store)) == (number < 3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_receipt_that_was_made_anew_differs_from_its_file(
    empty_database: Database, tmp_path: Path, number: int
) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    receipts.file_missing(empty_database, store)
    body = {**body_of(empty_database, number), "statement": "never happened"}
    body["sha256"] = hash_of(body)
    alter(empty_database, number, body=body, sha256=body["sha256"])
    assert number in {flaw.number for flaw in verify_chain(empty_database, store)}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_row_that_is_gone_is_found(empty_database: Database, tmp_path: Path, number: int) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    receipts.file_missing(empty_database, store)
    with empty_database.write() as session:
        session.delete(session.get_one(Receipt, number))
    assert Flaw(number, "missing in the database: it is only in the store") in verify_chain(empty_database, store)


def test_rows_that_changed_places_are_found(empty_database: Database, tmp_path: Path) -> None:
    enter(empty_database, *PLAIN)
    one, two = body_of(empty_database, 1), body_of(empty_database, 2)
    alter(empty_database, 1, body=two, sha256=two["sha256"])
    alter(empty_database, 2, body=one, sha256=one["sha256"])
    assert verify_chain(empty_database, Store(str(tmp_path)))


def file_of(store: Store, number: int) -> Path:
    [name] = [name for name in store.names(receipts.FOLDER) if f"/{number:08d}" in name]
    return Path(store.root) / name


BROKEN = {
    "not JSON": b"{",
    "not text": b"\xff\xfe",
    "empty": b"",
    "a list": b"[]",
    "without a number": b'{"statement": "one"}',
    "with a strange number": b'{"number": "x"}',
    "with no number at all": b'{"number": null}',
    "another number": b'{"number": 7, "statement": "one"}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_found(empty_database: Database, tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    receipts.file_missing(empty_database, store)
    file_of(store, 2).write_bytes(content)
    assert 2 in {flaw.number for flaw in verify_chain(empty_database, store)}


def test_a_file_in_the_place_of_another_is_found(empty_database: Database, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    receipts.file_missing(empty_database, store)
    file_of(store, 2).write_bytes(file_of(store, 1).read_bytes())
    assert 2 in {flaw.number for flaw in verify_chain(empty_database, store)}


def test_a_file_that_is_being_written_disturbs_nobody(empty_database: Database, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    enter(empty_database, *PLAIN)
    receipts.file_missing(empty_database, store)
    file = file_of(store, 3)
    file.with_name(f"00000004{file.name[8:]}.partial").write_bytes(b'{"numb')
    assert verify_chain(empty_database, store) == []
