"""Examples: validation, duplicates, and reading them back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from core.tables.ledger import Example
from tests.service.expect import JSON, add, listed, location, paged, refused, rows
from tests.stack import Stack


def post(api: httpx.Client, name: str, *examples: Any) -> httpx.Response:
    return api.post(f"/v1/models/{name}/examples", json={"examples": examples})


def test_positions_are_handed_out_in_the_order_of_the_batch(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    assert add(api, name, rows(3)) == {"accepted": 3, "duplicates": 0, "first_position": 1, "last_position": 3}
    assert add(api, name, rows(2, "f")) == {"accepted": 2, "duplicates": 0, "first_position": 4, "last_position": 5}
    assert [row["id"] for row in listed(api, name)] == ["e0", "e1", "e2", "f0", "f1"]
    assert [row["position"] for row in listed(api, name)] == [1, 2, 3, 4, 5]
    model = api.get(f"/v1/models/{name}").json()
    assert (model["head"], model["pending"], model["counts"]) == (
        5,
        5,
        {"train": 5, "holdout": 0, "removed": 0, "quarantined": 0, "unlabelled": 0},
    )


def test_identical_examples_are_duplicates_and_stored_once(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(3))
    nothing = {"accepted": 0, "duplicates": 3, "first_position": None, "last_position": None}
    assert add(api, name, rows(3)) == nothing
    assert add(api, name, rows(5)) == {"accepted": 2, "duplicates": 3, "first_position": 4, "last_position": 5}
    assert len(listed(api, name)) == 5


def test_the_same_twice_in_a_batch_is_stored_once(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    assert add(api, name, rows(2) + rows(3))["duplicates"] == 2
    assert [row["id"] for row in listed(api, name)] == ["e0", "e1", "e2"]


FIRST = {"id": "a", "x": [1, 2], "y": 1, "subject": "s", "split": "train"}


@pytest.mark.parametrize("other", [{"x": [1, 3]}, {"y": 0}, {"subject": "t"}, {"subject": None}, {"split": "holdout"}])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_same_id_with_other_content_is_a_conflict_and_nothing_is_stored(
    stack: Stack, api: httpx.Client, other: dict[str, Any], at_once: bool
) -> None:
    name = stack.model()
    if not at_once:
        add(api, name, [FIRST])
    before = listed(api, name)
    batch = [*([FIRST] if at_once else []), *rows(2), {**FIRST, **other}]
    assert location(refused(post(api, name, *batch), 409, "example_conflict")) == ["examples", len(batch) - 1]
    assert listed(api, name) == before
    assert api.get(f"/v1/models/{name}").json()["head"] == len(before)


def test_batches_at_the_same_time_store_each_id_once_and_leave_no_gap(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    batch = rows(200)
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda i: add(api, name, batch[i * 10 : i * 10 + 50]), range(16)))
    assert sum(answer["accepted"] for answer in added) == 200
    assert sorted(row["position"] for row in listed(api, name)) == list(range(1, 201))


def test_models_do_not_share_ids(stack: Stack, api: httpx.Client) -> None:
    one, other = stack.model(), stack.model()
    add(api, one, [FIRST])
    assert add(api, other, [{**FIRST, "y": 0}])["accepted"] == 1


def test_the_split_is_chosen_by_the_id_and_the_policys_share(stack: Stack, api: httpx.Client) -> None:
    batch = [{"id": f"e{i}", "x": [i, 0], "y": 1} for i in range(1000)]
    splits = []
    for _ in range(2):
        name = stack.model(policy={"holdout": 0.2})
        add(api, name, batch)
        splits.append({row["id"]: row["split"] for row in listed(api, name)})
        counts = api.get(f"/v1/models/{name}").json()["counts"]
        assert counts["holdout"] == list(splits[-1].values()).count("holdout")
    assert splits[0] == splits[1]
    assert 150 < counts["holdout"] < 250


def test_a_replay_is_a_duplicate_after_the_share_changed(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0.5})
    batch = [{"id": f"e{i}", "x": [i, 0], "y": 1} for i in range(50)]
    add(api, name, batch)
    api.patch(f"/v1/models/{name}", json={"policy": {"holdout": 0}}).raise_for_status()
    assert add(api, name, batch)["duplicates"] == 50


def test_no_holdout_is_possible(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0})
    add(api, name, [{"id": f"e{i}", "x": [i, 0], "y": 1} for i in range(100)])
    assert api.get(f"/v1/models/{name}").json()["counts"]["holdout"] == 0


@pytest.mark.parametrize("id_", ["a", "a/b/c", "ü 🙂", "x" * 200, "?#%25&", "..", "'; DROP TABLE examples; --"])
def test_any_printable_id_is_found_again(stack: Stack, api: httpx.Client, id_: str) -> None:
    name = stack.model()
    add(api, name, [{**FIRST, "id": id_}])
    path = "".join(f"%{byte:02x}" for byte in id_.encode())
    shown = {"id": id_, "x": [1, 2], "y": 1, "split": "train", "weight": 1, "position": 1}
    assert api.get(f"/v1/models/{name}/examples/{path}").json() == shown


def test_an_unknown_example_is_not_found(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    for id_ in ("none", "%00", "a%09b", "%ED%A0%80"):
        refused(api.get(f"/v1/models/{name}/examples/{id_}"), 404, "example_not_found")


def test_a_subject_is_never_shown_nor_stored(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{**FIRST, "subject": "somebody-in-person"}])
    assert "somebody" not in api.get(f"/v1/models/{name}/examples").text
    with stack.database.read() as session:
        stored = session.query(Example.subject).where(Example.id == "a").all()
    assert all(b"somebody" not in row.subject for row in stored if row.subject)


def test_examples_are_listed_in_pages(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(5))
    assert [row["id"] for row in paged(api, f"/v1/models/{name}/examples", limit=2)] == ["e0", "e1", "e2", "e3", "e4"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 30, "%00", "٣"])
def test_a_bad_cursor_is_refused(stack: Stack, api: httpx.Client, cursor: str) -> None:
    refused(api.get(f"/v1/models/{stack.model()}/examples?after={cursor}"), 422, "cursor_invalid")


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no id": ({"id": None}, "id", "example_invalid"),
    "empty id": ({"id": ""}, "id", "id_invalid"),
    "long id": ({"id": "x" * 201}, "id", "id_invalid"),
    "number as id": ({"id": 7}, "id", "example_invalid"),
    "NUL in the id": ({"id": "a\0b"}, "id", "id_invalid"),
    "newline in the id": ({"id": "a\n"}, "id", "id_invalid"),
    "empty subject": ({"subject": ""}, "subject", "subject_invalid"),
    "long subject": ({"subject": "x" * 201}, "subject", "subject_invalid"),
    "control character in the subject": ({"subject": "\x1b[31m"}, "subject", "subject_invalid"),
    "short x": ({"x": [1]}, "x", "example_shape_mismatch"),
    "long x": ({"x": [1, 2, 3]}, "x", "example_shape_mismatch"),
    "empty x": ({"x": []}, "x", "example_shape_mismatch"),
    "text in x": ({"x": [1, "2"]}, "x", "example_invalid"),
    "null in x": ({"x": [1, None]}, "x", "example_invalid"),
    "object as x": ({"x": {"a": 1, "b": 2}}, "x", "example_invalid"),
    "nested x": ({"x": [[1], [2]]}, "x", "example_invalid"),
    "x too large": ({"x": [1, 2**26 + 1]}, "x", "number_too_large"),
    "x too large for 32 bits": ({"x": [1, 1e39]}, "x", "number_too_large"),
    "label outside": ({"y": 2}, "y", "label_invalid"),
    "label beyond": ({"y": 1.5}, "y", "label_invalid"),
    "text as label": ({"y": "1"}, "y", "label_invalid"),
    "huge label": ({"y": 10**400}, "y", "label_invalid"),
    "another split": ({"split": "test"}, "split", "example_invalid"),
    "an unknown field": ({"importance": 2}, "", "example_invalid"),
    "a weight of nothing": ({"weight": 0}, "weight", "weight_invalid"),
    "a weight below nothing": ({"weight": -1.5}, "weight", "weight_invalid"),
    "a weight above all": ({"weight": 1e7}, "weight", "weight_invalid"),
    "a weight beyond numbers": ({"weight": 10**400}, "weight", "weight_invalid"),
    "text as a weight": ({"weight": "2"}, "weight", "weight_invalid"),
    "true as a weight": ({"weight": True}, "weight", "weight_invalid"),
}


@pytest.mark.parametrize(("bad", "field", "code"), BAD.values(), ids=BAD.keys())
def test_one_bad_example_refuses_the_batch_and_is_named(
    stack: Stack, api: httpx.Client, bad: dict[str, Any], field: str, code: str
) -> None:
    name = stack.model()
    problem = refused(post(api, name, *rows(2), {**FIRST, **bad}, *rows(2, "f")), 422, code)
    assert location(problem)[:3] == ["examples", 2, *([field] if field else [])]
    assert listed(api, name) == []


@pytest.mark.parametrize("missing", ["id", "x", "y"])
def test_id_x_and_y_are_needed(stack: Stack, api: httpx.Client, missing: str) -> None:
    example = {k: v for k, v in FIRST.items() if k != missing}
    assert location(refused(post(api, stack.model(), FIRST, example), 422, "example_invalid"))[:2] == ["examples", 1]


TARGETS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "unknown class": ({"kind": "classes", "values": [0, 1, 2]}, 3, "label_invalid"),
    "class of another type": ({"kind": "classes", "values": [0, 1]}, "1", "label_invalid"),
    "count below 0": ({"kind": "count"}, -1, "label_invalid"),
    "count between": ({"kind": "count"}, 1.5, "label_invalid"),
    "text as count": ({"kind": "count"}, "1", "example_invalid"),
    "text as number": ({"kind": "number"}, "1", "example_invalid"),
    "number beyond all bounds": ({"kind": "number"}, 10**400, "number_too_large"),
}


@pytest.mark.parametrize(("target", "y", "code"), TARGETS.values(), ids=TARGETS.keys())
def test_a_target_outside_its_family_is_refused(
    stack: Stack, api: httpx.Client, target: Any, y: Any, code: str
) -> None:
    good = {"id": "g", "x": [1, 2], "y": 1}
    problem = refused(post(api, stack.model(target=target), good, {**FIRST, "y": y}), 422, code)
    assert location(problem) == ["examples", 1, "y"]


IMAGE = {"kind": "image", "shape": [1, 2, 2]}
BYTES = {**IMAGE, "dtype": "uint8"}
TABLE = {
    "kind": "table",
    "columns": [{"name": "n", "type": "number"}, {"name": "c", "type": "category", "values": ["a", 1], "other": False}],
}
INPUTS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "image turned": (IMAGE, [[[1, 2], [3, 4]]], [[[1, 2, 3, 4]]], "example_shape_mismatch"),
    "ragged image": (IMAGE, [[[1, 2], [3, 4]]], [[[1, 2], [3]]], "example_shape_mismatch"),
    "flat image": (IMAGE, [[[1, 2], [3, 4]]], [1, 2, 3, 4], "example_invalid"),
    "pixel below 0": (BYTES, [[[1, 2], [3, 4]]], [[[1, 2], [3, -1]]], "pixel_invalid"),
    "pixel above 255": (BYTES, [[[1, 2], [3, 255]]], [[[1, 2], [3, 256]]], "pixel_invalid"),
    "pixel between": (BYTES, [[[1, 2], [3, 4]]], [[[1, 2], [3, 0.5]]], "pixel_invalid"),
    "unknown category": (TABLE, {"n": 1, "c": "a"}, {"n": 1, "c": "b"}, "category_unknown"),
    "fraction as category": (TABLE, {"n": 1, "c": "1"}, {"n": 1, "c": 1.5}, "example_invalid"),
    "missing column": (TABLE, {"n": None, "c": None}, {"n": 1}, "example_invalid"),
    "unknown column": (TABLE, {"n": 1, "c": "a"}, {"n": 1, "c": "a", "d": 1}, "example_invalid"),
    "text as number": (TABLE, {"n": 1, "c": "a"}, {"n": "1", "c": "a"}, "example_invalid"),
    "number too large": (TABLE, {"n": 1, "c": "a"}, {"n": 1e39, "c": "a"}, "number_too_large"),
    "list as table": (TABLE, {"n": 1, "c": "a"}, [1, "a"], "example_invalid"),
}


@pytest.mark.parametrize(("kind", "good", "bad", "code"), INPUTS.values(), ids=INPUTS.keys())
def test_an_input_that_does_not_fit_is_refused(
    stack: Stack, api: httpx.Client, kind: Any, good: Any, bad: Any, code: str
) -> None:
    name = stack.model(input=kind)
    add(api, name, [{**FIRST, "x": good}])
    problem = refused(post(api, name, {**FIRST, "id": "b", "x": good}, {**FIRST, "id": "c", "x": bad}), 422, code)
    assert location(problem)[:3] == ["examples", 1, "x"]
    if code == "category_unknown":
        assert problem["errors"][0]["msg"] == 'must be one of the values of this column: "a", 1'


EXAMPLE = json.dumps(FIRST)
MALFORMED = {
    "nested without end": ('{"examples": ' + "[" * 100_000, 422),
    "half a character": ('{"examples": [{"id": "\\ud800", "x": [1, 2], "y": 1}]}', 400),
    "not UTF-8": (b'{"examples": [{"id": "\xff", "x": [1, 2], "y": 1}]}', 400),
    "NaN": ('{"examples": [{"id": "a", "x": [NaN, 2], "y": 1}]}', 400),
    "infinite": ('{"examples": [{"id": "a", "x": [1e999, 2], "y": 1}]}', 422),
    "an integer of 5000 digits": ('{"examples": [{"id": "a", "x": [1, 2], "y": 1' + "0" * 5000 + "}]}", 422),
    "x of 400 digits": ('{"examples": [{"id": "a", "x": [1' + "0" * 400 + ', 2], "y": 1}]}', 422),
    "nothing in it": ('{"examples": []}', 422),
    "a list": (f"[{EXAMPLE}]", 422),
    "an unknown field": ('{"examples": [' + EXAMPLE + '], "mode": 1}', 422),
    "more after the end": ('{"examples": [' + EXAMPLE + "]}{}", 400),
}


@pytest.mark.parametrize(("body", "status"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_body_is_refused(stack: Stack, api: httpx.Client, body: Any, status: int) -> None:
    answer = api.post(f"/v1/models/{stack.model()}/examples", content=body, headers=JSON)
    refused(answer, status)


def test_no_subject_is_in_both_splits_unless_examples_are_drawn_one_by_one(stack: Stack, api: httpx.Client) -> None:
    def splits(**policy: Any) -> dict[str, set[str]]:
        name = stack.model(policy={"holdout": 0.3} | policy)
        for start in (0, 300):
            rows = [{"id": f"e{i}", "x": [i, 0], "y": 1, "subject": f"s{i % 60}"} for i in range(start, start + 300)]
            assert add(api, name, rows)["accepted"] == 300
        found: dict[str, set[str]] = {}
        for row in listed(api, name):
            found.setdefault(f"s{int(row['id'][1:]) % 60}", set()).add(row["split"])
        return found

    together = splits()
    assert all(len(each) == 1 for each in together.values())
    assert 6 < sum(each == {"holdout"} for each in together.values()) < 30
    assert together == splits(holdout={"fraction": 0.3}) == splits(holdout={"fraction": 0.3, "by": "subject"})
    assert sum(len(each) == 2 for each in splits(holdout={"fraction": 0.3, "by": "example"}).values()) > 40
