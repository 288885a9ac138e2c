"""Boolean and date columns have the same values in every format."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kprior.model.dates import days_of
from service.parsing.inputs.table_columns import Date
from tests.service.bodies import ARROW, BODIES, CSV, PARQUET, file, stream
from tests.service.expect import listed, location, refused
from tests.service.test_formats import send
from tests.service.test_predictions import predict, trained
from tests.stack import Stack

TABLE = {"kind": "table", "columns": [{"name": "member", "type": "boolean"}, {"name": "since", "type": "date"}]}
DAY, MOMENT = date(2024, 3, 5), datetime(2024, 3, 5, 12, 0, tzinfo=UTC)
SHOWN = [
    {"member": True, "since": "2024-03-05"},
    {"member": False, "since": "2024-03-05T12:00:00Z"},
    {"member": None, "since": None},
]
TEXTS = ["2024-03-05", "2024-03-05T14:00:00+02:00", None]
WAYS: dict[str, tuple[list[Any], list[Any]]] = {
    "texts": (["true", "False", None], TEXTS),
    "numbers": ([1, 0, None], ["2024-03-05T00:00", "2024-03-05 12:00:00.0", None]),
    "booleans": ([True, False, None], ["2024-03-05T00:00:00Z", "2024-03-05T12:00:00", None]),
    "empty": (["1", "0", ""], ["2024-03-05", "2024-03-05T12:00Z", ""]),
}
TYPES = {
    "timestamp": (pa.bool_(), pa.array([datetime(2024, 3, 5, tzinfo=UTC), MOMENT, None], pa.timestamp("ns", "UTC"))),
    "no time zone": (pa.int8(), pa.array([datetime(2024, 3, 5), datetime(2024, 3, 5, 12), None], pa.timestamp("s"))),
    "elsewhere": (pa.float64(), pa.array([datetime(2024, 3, 5), MOMENT, None], pa.timestamp("ms", "Asia/Tokyo"))),
}


def examples(members: list[Any], dates: list[Any]) -> list[dict[str, Any]]:
    pairs = zip(members, dates, strict=True)
    return [{"id": f"e{i}", "x": {"member": m, "since": d}, "y": i % 2} for i, (m, d) in enumerate(pairs)]


def check(api: httpx.Client, name: str, body: bytes, kind: str) -> None:
    answer = send(api, name, body, kind)
    assert answer.status_code == 201, (kind, answer.text)
    stored = listed(api, name)
    assert [row["x"] for row in stored] == SHOWN, kind
    again = [{"id": row["id"], "x": row["x"], "y": row["y"]} for row in stored]
    for other, encode in BODIES.items():
        assert send(api, name, encode(again), other).json().get("duplicates") == 3, (kind, other)


def test_all_formats_store_the_same_booleans_and_dates(stack: Stack, api: httpx.Client) -> None:
    for members, dates in WAYS.values():
        for kind, encode in BODIES.items():
            check(api, stack.model(input=TABLE), encode(examples(members, dates)), kind)
    for booleans, dates in TYPES.values():
        members = pa.array([1, 0, None]).cast(booleans)
        made = pa.table({"id": ["e0", "e1", "e2"], "y": [0, 1, 0], "member": members, "since": dates})
        for kind, body in ((ARROW, stream(made)), (PARQUET, file(made))):
            check(api, stack.model(input=TABLE), body, kind)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_days_of_arrow_are_days(stack: Stack, api: httpx.Client, kind: pa.DataType) -> None:
    made = pa.table({"id": ["a"], "y": [1], "member": [True], "since": pa.array([DAY], kind)})
    for content, body in ((ARROW, stream(made)), (PARQUET, file(made))):
        name = stack.model(input=TABLE)
        assert send(api, name, body, content).status_code == 201
        assert listed(api, name)[0]["x"] == SHOWN[0]


@pytest.mark.parametrize(
    ("member", "since", "code", "column"),
    [
        ("yes", "2024-03-05", "boolean_invalid", "member"),
        (2, "2024-03-05", "boolean_invalid", "member"),
        (0.5, "2024-03-05", "boolean_invalid", "member"),
        (True, "5.3.2024", "date_invalid", "since"),
        (True, "2024-02-30", "date_invalid", "since"),
        (True, "2024-03-05T25:00", "date_invalid", "since"),
    ],
)
def test_invalid_booleans_and_dates_are_refused_with_their_location(
    stack: Stack, api: httpx.Client, member: Any, since: Any, code: str, column: str
) -> None:
    name = stack.model(input=TABLE)
    fine = str(member) if isinstance(member, str) else type(member)(1)
    rows = examples([fine if not isinstance(fine, str) else "true", member], ["2024-03-05", since])
    for kind, encode in BODIES.items():
        where = location(refused(send(api, name, encode(rows), kind), 422, code))
        assert (where[:2], where[-1]) == (["examples", 1], column), kind
    assert not listed(api, name)


def test_a_number_is_not_a_date_in_any_format(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=TABLE)
    for kind, encode in BODIES.items():
        answer = send(api, name, encode(examples([True], [19787])), kind)
        assert location(refused(answer, 422, "date_invalid"))[-1] == "since", kind


def test_predictions_parse_booleans_and_dates_like_examples(stack: Stack, api: httpx.Client) -> None:
    xs = [{"member": i % 2 == 0, "since": str(DAY + timedelta(100 * i))} for i in range(8)]
    name = trained(stack, api, xs, [0, 0, 0, 1, 0, 1, 1, 1], input=TABLE)
    spelt = [{"member": int(x["member"]), "since": f"{x['since']}T02:00:00+02:00"} for x in xs]
    assert predict(api, name, spelt) == predict(api, name, xs)
    early, late = predict(api, name, [xs[0], xs[6]])
    assert early["mean"] < late["mean"]
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [xs[0], {"member": True, "since": "soon"}]})
    assert location(refused(answer, 422, "date_invalid")) == ["inputs", 1, "since"]


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))
def test_a_stored_time_is_returned_as_an_equivalent_text(moment: datetime) -> None:
    column = Date("since")
    stored = np.float32(days_of(moment))
    assert np.float32(days_of(column.to_json(stored))) == stored or abs(stored) < 2**-12
    assert abs(days_of(column.to_json(stored)) - days_of(moment)) <= 2**-3
    table = pa.chunked_array([pa.array([moment], pa.timestamp("us"))])
    assert np.float32(column.from_column(table, "examples")[0]) == stored


def test_true_is_a_number_in_csv_whatever_else_the_column_has(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input={"kind": "table", "columns": [{"name": "n", "type": "number"}, TABLE["columns"][1]]})
    body = "id,y,n,since\na,1,true,2024-03-05\nb,0,2.5,\n"
    assert send(api, name, body, CSV).status_code == 201
    assert [row["x"] for row in listed(api, name)] == [{"n": 1, "since": "2024-03-05"}, {"n": 2.5, "since": None}]
