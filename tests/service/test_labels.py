"""Examples without a label are stored outside the ledger; a label adds its example to the ledger."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.service.bodies import ARROW, BODIES, CSV, NDJSON, PARQUET, Rows
from tests.service.expect import add, listed, refused, rows
from tests.stack import Stack


def unlabelled(count: int, prefix: str = "e") -> Rows:
    return [{**row, "y": None} for row in rows(count, prefix)]


def pending(api: httpx.Client, name: str, **query: str) -> list[dict[str, Any]]:
    response = api.get(f"/v1/models/{name}/examples", params={"label": "pending", **query})
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


def label(api: httpx.Client, name: str, labels: dict[str, Any]) -> dict[str, Any]:
    body = {"labels": [{"id": id_, "y": y} for id_, y in labels.items()]}
    response = api.post(f"/v1/models/{name}/labels", json=body)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def counts(api: httpx.Client, name: str) -> dict[str, int]:
    found: dict[str, int] = api.get(f"/v1/models/{name}").json()["counts"]
    return found


def test_a_batch_may_mix_examples_with_and_without_labels(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    first, second = unlabelled(2), rows(3, "f")
    added = add(api, name, [*first, *second])
    assert added == {"accepted": 5, "duplicates": 0, "first_position": 1, "last_position": 3}
    assert [row["id"] for row in pending(api, name)] == ["e0", "e1"]
    assert [row["id"] for row in listed(api, name)] == ["f0", "f1", "f2"]
    assert counts(api, name)["unlabelled"] == 2
    found = api.get(f"/v1/models/{name}/examples/e1").json()
    assert found == {**pending(api, name)[1], "id": "e1", "x": first[1]["x"], "y": None, "position": None}


@pytest.mark.both_databases
def test_a_source_that_cannot_be_stored_has_no_examples(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [*unlabelled(1), *rows(1, "f")])
    assert pending(api, name, source="\0") == []
    assert api.get(f"/v1/models/{name}/examples", params={"source": "\0"}).json()["items"] == []


def test_examples_without_labels_take_no_position(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    added = add(api, name, unlabelled(2))
    assert added == {"accepted": 2, "duplicates": 0, "first_position": None, "last_position": None}
    assert api.get(f"/v1/models/{name}").json()["head"] == 0


@pytest.mark.parametrize("content_type", BODIES)
def test_every_format_accepts_missing_labels(stack: Stack, api: httpx.Client, content_type: str) -> None:
    name = stack.model()
    batch = [{**row, "y": None if i % 2 else row["y"]} for i, row in enumerate(rows(6))]
    if content_type in (ARROW, PARQUET):
        batch = [{**row, "y": None if row["y"] is None else str(row["y"])} for row in batch]
        body = BODIES[content_type]([{**row, "y": row["y"] or ""} for row in batch])
        import pyarrow as pa

        from tests.service.bodies import file, stream, table

        made = table(batch and [{**row, "y": row["y"] or "0"} for row in batch])
        made = made.set_column(made.column_names.index("y"), "y", pa.array([row["y"] for row in batch]))
        body = stream(made) if content_type == ARROW else file(made)
    else:
        body = BODIES[content_type](batch)
    response = api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": content_type})
    assert response.status_code == 201, response.text
    assert response.json()["accepted"] == 6
    assert [row["id"] for row in pending(api, name)] == ["e1", "e3", "e5"]
    assert [row["id"] for row in listed(api, name)] == ["e0", "e2", "e4"]


@pytest.mark.parametrize("content_type", [NDJSON, CSV, ARROW, PARQUET])
def test_labels_come_in_every_format(stack: Stack, api: httpx.Client, content_type: str) -> None:
    import pyarrow as pa

    from tests.service.bodies import file, stream

    name = stack.model()
    add(api, name, unlabelled(3))
    labels = {"e0": 1, "e2": 0}
    made = pa.table({"id": list(labels), "y": list(labels.values())})
    body = {
        NDJSON: "\n".join(json.dumps({"id": id_, "y": y}) for id_, y in labels.items()).encode(),
        CSV: ("id,y\n" + "\n".join(f"{id_},{y}" for id_, y in labels.items())).encode(),
        ARROW: stream(made),
        PARQUET: file(made),
    }[content_type]
    response = api.post(f"/v1/models/{name}/labels", content=body, headers={"Content-Type": content_type})
    assert response.status_code == 200, response.text
    assert response.json() == {"accepted": 2, "unknown": [], "duplicates": 0}
    assert {row["id"]: row["y"] for row in listed(api, name)} == labels


def test_a_label_adds_its_example_at_the_labels_position(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    sent = {**unlabelled(1)[0], "subject": "user-7", "weight": 2.0, "split": "holdout", "source": "web"}
    add(api, name, [sent, *rows(2, "f")])
    assert label(api, name, {"e0": 1, "zz": 1}) == {"accepted": 1, "unknown": ["zz"], "duplicates": 0}
    found = listed(api, name)[-1]
    wanted = {"id": "e0", "x": sent["x"], "y": 1, "position": 3, "split": "holdout", "weight": 2.0, "source": "web"}
    assert {key: found[key] for key in wanted} == wanted
    assert pending(api, name) == []
    assert counts(api, name)["unlabelled"] == 0
    assert label(api, name, {"e0": 1}) == {"accepted": 0, "unknown": [], "duplicates": 1}
    body = {"labels": [{"id": "e0", "y": 0}]}
    refused(api.post(f"/v1/models/{name}/labels", json=body), 409, "label_conflict")


def test_two_labels_for_one_id_conflict_and_nothing_is_stored(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, unlabelled(2))
    body = {"labels": [{"id": "e0", "y": 0}, {"id": "e1", "y": 0}, {"id": "e0", "y": 1}]}
    problem = refused(api.post(f"/v1/models/{name}/labels", json=body), 409, "label_conflict")
    assert problem["errors"][0]["loc"] == ["labels", 2]
    assert len(pending(api, name)) == 2
    assert listed(api, name) == []


def test_ids_are_unique_among_examples_with_and_without_labels(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    [row] = unlabelled(1)
    add(api, name, [row])
    assert add(api, name, [row])["duplicates"] == 1
    other = {**row, "x": [9, 9]}
    refused(api.post(f"/v1/models/{name}/examples", json={"examples": [other]}), 409, "example_conflict")
    refused(api.post(f"/v1/models/{name}/examples", json={"examples": [{**other, "y": 1}]}), 409, "example_conflict")
    # with a label and the same content, it is its label
    added = add(api, name, [{**row, "y": 1}, *rows(1, "f")])
    assert added == {"accepted": 2, "duplicates": 0, "first_position": 1, "last_position": 2}
    assert (pending(api, name), len(listed(api, name))) == ([], 2)
    # an example that has its label is a duplicate without it
    assert add(api, name, [row])["duplicates"] == 1


def test_removals_also_remove_examples_without_labels(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    people = ["user-7", "user-8", "user-7", None]
    add(api, name, [{**row, "subject": person} for row, person in zip(unlabelled(4), people, strict=True)])
    removed = api.post(f"/v1/models/{name}/removals", json={"subjects": ["user-7", "user-9"]}).json()
    assert (removed["removed"], removed["unknown"], removed["job"]) == (2, ["user-9"], None)
    removed = api.post(f"/v1/models/{name}/removals", json={"ids": ["e3", "zz"]}).json()
    assert (removed["removed"], removed["unknown"]) == (1, ["zz"])
    assert [row["id"] for row in pending(api, name)] == ["e1"]
    assert counts(api, name)["unlabelled"] == 1


def test_pages_of_examples_without_labels(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{**row, "source": "web" if i else "shop"} for i, row in enumerate(unlabelled(5))])
    query: dict[str, Any] = {"label": "pending", "limit": 2}
    seen = []
    while True:
        page = api.get(f"/v1/models/{name}/examples", params=query).json()
        seen += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert seen == ["e0", "e1", "e2", "e3", "e4"]
    assert [row["id"] for row in pending(api, name, source="shop")] == ["e0"]


def test_labels_need_the_scope_ingest(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    with stack.client(stack.key("read")) as reader:
        refused(reader.post(f"/v1/models/{name}/labels", json={"labels": [{"id": "e", "y": 1}]}), 403, "scope_missing")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"labels": []}, "batch_empty"),
        ({"labels": [{"id": "e0", "y": None}]}, "label_missing"),
        ({"labels": [{"id": "e0", "y": 7}]}, "label_invalid"),
        ({"labels": [{"id": "", "y": 1}]}, "id_invalid"),
        ({"labels": [{"id": "e0"}]}, "example_invalid"),
    ],
)
def test_invalid_labels_are_rejected(stack: Stack, api: httpx.Client, body: Any, code: str) -> None:
    refused(api.post(f"/v1/models/{stack.model()}/labels", json=body), 422, code)


def test_a_correction_needs_a_label(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(1))
    refused(api.put(f"/v1/models/{name}/examples/e0", json={"x": [1, 2], "y": None}), 422, "label_missing")
