"""Models: create, describe, change the policy, delete."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from core.models import catalog
from core.tables.ledger import Example
from tests.service.expect import JSON, add, location, paged, refused, rows
from tests.stack import Stack

VECTOR = {"kind": "vector", "dim": 2}
IMAGE = {"kind": "image", "shape": [1, 32, 32]}
TABLE = {
    "kind": "table",
    "columns": [{"name": "age", "type": "number"}, {"name": "job", "type": "category", "values": ["a", 2]}],
}
SPECS: dict[str, dict[str, Any]] = {
    "table": {"input": TABLE},
    "classes": {"target": {"kind": "classes", "values": ["low", "high", 3]}},
    "number": {"target": {"kind": "number"}},
    "count": {"target": {"kind": "count"}},
    "degree": {"architecture": {"kind": "linear", "degree": 3}},
    "kernel": {
        "architecture": {"kind": "kernel", "kernel": "matern", "features": 64, "lengthscale": 2.0, "nu": 2.5, "seed": 1}
    },
    "mlp": {"architecture": {"kind": "mlp", "hidden": [8, 4]}},
    "lenet5": {"input": IMAGE, "architecture": {"kind": "lenet5"}},
    "cifarnet": {"input": {"kind": "image", "shape": [3, 32, 32]}, "architecture": {"kind": "cifarnet"}},
    "bytes": {"input": {**IMAGE, "dtype": "uint8"}},
    "regularizer": {"regularizer": {"kind": "l2", "delta": 5.0, "penalize_bias": True}},
    "a delta for each weight": {"regularizer": {"kind": "l2", "delta": [1.0, 2.0, 0.0]}},
    "policy": {"policy": {"memory": {"fraction": 0.5, "select": "leverage"}, "certify": "never", "holdout": 0.0}},
    "training": {"training": {"seed": 7, "max_epochs": 3}},
    "longest name": {"name": "n" * 63},
}


def create(api: httpx.Client, name: str, **spec: Any) -> httpx.Response:
    return api.post("/v1/models", json={"name": name, "input": VECTOR, "target": {"kind": "binary"}, **spec})


def matches(given: Any, shown: Any) -> bool:
    """Whether all that was given is shown; defaults may be shown besides."""
    if isinstance(given, dict):
        return all(key in shown and matches(value, shown[key]) for key, value in given.items())
    if isinstance(given, list):
        return len(given) == len(shown) and all(map(matches, given, shown))
    return bool(given == shown)


def test_a_new_model_is_described_with_all_its_defaults(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    model = api.get(f"/v1/models/{name}").json()
    assert model.pop("created_at").endswith("Z")
    assert model == {
        "name": name,
        "input": VECTOR,
        "target": {"kind": "binary"},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": 1.0, "penalize_bias": False},
        "loss": {"kind": "log"},
        "training": {
            "learning_rate": 0.003,
            "batch_size": 256,
            "max_epochs": 100,
            "patience": 5,
            "budget": 24_000,
            "seed": 0,
            "removal": None,
        },
        "policy": {
            "memory": {"fraction": 0.02, "cap": 5000, "select": "auto", "balance": False},
            "adapt": {"after_changes": 100, "every": "10m"},
            "retrain": {"every": "24h", "on_drift": False},
            "tune": {"every": None, "apply": True},
            "tolerance": {"relative_bound": 0.01, "disagreement": 0.01},
            "evaluation": {"rows": 20000},
            "gate": {"metric": "loss", "worse_by": 0.05, "sigmas": 3.0, "action": "reject"},
            "erasure": {"keep_superseded": None, "retrain": None, "encoder": "require"},
            "certify": "always",
            "promote": "automatic",
            "holdout": 0.1,
            "headline": None,
            "threshold": 0.5,
            "recall_at_precision": None,
            "segments": [],
            "challenger": None,
            "expire": None,
            "versions": {"keep": 50, "every": "7d"},
        },
        "counts": {"train": 0, "holdout": 0, "removed": 0, "quarantined": 0, "unlabelled": 0},
        "head": 0,
        "champion": None,
        "pending": 0,
        "held": None,
        "withdrawn": False,
        "mlflow": None,
    }


@pytest.mark.parametrize("given", SPECS.values(), ids=SPECS.keys())
def test_every_kind_of_model_is_created_and_shown_as_given(stack: Stack, api: httpx.Client, given: Any) -> None:
    name = given.get("name") or f"kind-{abs(hash(str(given)))}"
    api.delete(f"/v1/models/{name}")
    made = create(api, **{"name": name, **given})
    assert made.status_code == 201, made.text
    assert matches(given, made.json())
    assert api.get(f"/v1/models/{name}").json() == made.json()


BAD: dict[str, tuple[dict[str, Any], list[str | int]]] = {
    "name empty": ({"name": ""}, ["name"]),
    "name too long": ({"name": "n" * 64}, ["name"]),
    "name with capitals": ({"name": "Churn"}, ["name"]),
    "name with NUL": ({"name": "a\0"}, ["name"]),
    "name with newline": ({"name": "a\n"}, ["name"]),
    "unknown field": ({"colour": "red"}, ["colour"]),
    "unknown input": ({"input": {"kind": "sound"}}, ["input"]),
    "no numbers": ({"input": {"kind": "vector", "dim": 0}}, ["input", "dim"]),
    "fraction of a number": ({"input": {"kind": "vector", "dim": 1.5}}, ["input", "dim"]),
    "flat image": ({"input": {"kind": "image", "shape": [32, 32]}}, ["input", "shape"]),
    "huge image": ({"input": {"kind": "image", "shape": [3, 4000, 4000]}}, ["input", "shape"]),
    "no columns": ({"input": {"kind": "table", "columns": []}}, ["input", "columns"]),
    "reserved column": (
        {"input": {"kind": "table", "columns": [{"name": "subject", "type": "number"}]}},
        ["input", "columns"],
    ),
    "column twice": (
        {"input": {"kind": "table", "columns": [{"name": "a", "type": "number"}] * 2}},
        ["input", "columns"],
    ),
    "column with NUL": (
        {"input": {"kind": "table", "columns": [{"name": "\0", "type": "number"}]}},
        ["input", "columns", 0, "name"],
    ),
    "value twice": ({"target": {"kind": "classes", "values": [1, "1"]}}, ["target", "values"]),
    "one class": ({"target": {"kind": "classes", "values": [1]}}, ["target", "values"]),
    "degree": ({"architecture": {"kind": "linear", "degree": 11}}, ["architecture", "degree"]),
    "kernel": ({"architecture": {"kind": "kernel", "kernel": "cubic"}}, ["architecture", "kernel"]),
    "features": ({"architecture": {"kind": "kernel", "features": 1}}, ["architecture", "features"]),
    "odd features": ({"architecture": {"kind": "kernel", "features": 3}}, ["architecture", "features"]),
    "lengthscale": ({"architecture": {"kind": "kernel", "lengthscale": 0}}, ["architecture", "lengthscale"]),
    "nu": ({"architecture": {"kind": "kernel", "kernel": "matern", "nu": 2}}, ["architecture", "nu"]),
    "nu of another kernel": ({"architecture": {"kind": "kernel", "nu": 1.5}}, ["architecture", "nu"]),
    "delta below 0": ({"regularizer": {"kind": "l2", "delta": -1}}, ["regularizer", "delta"]),
    "seed": ({"training": {"seed": 2**31}}, ["training", "seed"]),
    "holdout of everything": ({"policy": {"holdout": 1}}, ["policy", "holdout"]),
    "duration": ({"policy": {"retrain": {"every": "soon"}}}, ["policy", "retrain", "every"]),
    "unknown metric": ({"policy": {"gate": {"metric": "auk"}}}, ["policy", "gate", "metric"]),
    "threshold above 1": ({"policy": {"threshold": 1.5}}, ["policy", "threshold"]),
    "negative limit of the gate": ({"policy": {"gate": {"worse_by": -0.1}}}, ["policy", "gate", "worse_by"]),
    "unknown drawing of the holdout": ({"policy": {"holdout": {"by": "day"}}}, ["policy", "holdout", "by"]),
    "no version is kept": ({"policy": {"versions": {"keep": 0}}}, ["policy", "versions", "keep"]),
    "segment that is not a column": ({"policy": {"segments": ["job"]}}, ["policy", "segments", 0]),
    "segment of numbers": ({"input": TABLE, "policy": {"segments": ["age"]}}, ["policy", "segments", 0]),
    "segment twice": ({"input": TABLE, "policy": {"segments": ["job", "job"]}}, ["policy", "segments", 1]),
    "gate metric of another target": ({"policy": {"gate": {"metric": "rmse"}}}, ["policy", "gate", "metric"]),
    "headline of another target": (
        {"target": {"kind": "number"}, "policy": {"headline": "accuracy"}},
        ["policy", "headline"],
    ),
    "headline without its precision": ({"policy": {"headline": "recall_at_precision"}}, ["policy", "headline"]),
    "threshold of numbers": ({"target": {"kind": "count"}, "policy": {"threshold": 0.3}}, ["policy", "threshold"]),
    "challenger of a model without versions": ({"policy": {"challenger": 1}}, ["policy", "challenger"]),
}


@pytest.mark.parametrize(("given", "loc"), BAD.values(), ids=BAD.keys())
def test_a_bad_spec_is_refused_with_its_place(stack: Stack, api: httpx.Client, given: Any, loc: list[Any]) -> None:
    code = "policy_invalid" if loc[:1] == ["policy"] else "request_invalid"
    problem = refused(create(api, **{"name": "never-made", **given}), 422, code)
    assert location(problem)[: len(loc)] == loc
    refused(api.get("/v1/models/never-made"), 404, "model_not_found")


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "a network for images on a vector": ({"architecture": {"kind": "lenet5"}}, "request_invalid"),
    "an image too small for its network": (
        {"input": {"kind": "image", "shape": [1, 1, 1]}, "architecture": {"kind": "lenet5"}},
        "spec_invalid",
    ),
    "a plugin that is not installed": ({"architecture": {"kind": "plugin", "name": "none-such"}}, "spec_invalid"),
    "one delta too few": ({"regularizer": {"kind": "l2", "delta": [1.0, 1.0]}}, "spec_invalid"),
    "too many weights": ({"architecture": {"kind": "mlp", "hidden": [100_000] * 3}}, "model_too_large"),
    "too many frequencies": (
        {"input": {"kind": "vector", "dim": 100_000}, "architecture": {"kind": "kernel", "features": 10_000}},
        "spec_invalid",
    ),
    "too many monomials": (
        {"input": {"kind": "vector", "dim": 100_000}, "architecture": {"kind": "linear", "degree": 10}},
        "spec_invalid",
    ),
}


@pytest.mark.parametrize(("given", "code"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_model_that_cannot_be_built_is_refused(stack: Stack, api: httpx.Client, given: Any, code: str) -> None:
    refused(create(api, "never-made", **given), 422, code)


MALFORMED = {
    "broken off": ('{"name": "a"', 400),
    "nothing": ("", 422),
    "nested without end": ("[" * 100_000, 400),
    "a number of 5000 digits": ('{"name": 1' + "0" * 5000 + "}", 400),
    "half a character": ('{"name": "\\ud800", "input": {"kind": "\\ud800"}}', 422),
    "not UTF-8": (b'{"name": "\xff"}', 400),
    "NaN": ('{"name": "a", "regularizer": {"kind": "l2", "delta": NaN}}', 422),
    "a list": ("[]", 422),
    "deep options": (
        '{"name": "a", "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"},'
        ' "architecture": {"kind": "plugin", "name": "b", "o": ' + '{"a":' * 600 + "1" + "}" * 600 + "}}",
        422,
    ),
}


@pytest.mark.parametrize(("body", "status"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_body_is_refused(stack: Stack, api: httpx.Client, body: str | bytes, status: int) -> None:
    refused(api.post("/v1/models", content=body, headers=JSON), status)


def test_two_models_cannot_have_the_same_name(stack: Stack, api: httpx.Client) -> None:
    refused(create(api, stack.model()), 409, "model_exists")


def test_models_are_listed_by_name_in_pages(stack: Stack, api: httpx.Client) -> None:
    made = {stack.model() for _ in range(3)}
    names = [model["name"] for model in paged(api, "/v1/models", limit=7)]
    assert made <= set(names)
    assert len(names) == len(set(names))


def test_an_unknown_model_is_not_found(stack: Stack, api: httpx.Client) -> None:
    for name in ("none-such", "%00", "Ü", "a b", "%ff", "'; --"):
        refused(api.get(f"/v1/models/{name}"), 404, "model_not_found")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=" + "a" * 201])
def test_a_bad_page_is_refused(stack: Stack, api: httpx.Client, query: str) -> None:
    problem = refused(api.get(f"/v1/models?{query}"), 422, "request_invalid")
    assert location(problem) == ["query", query.partition("=")[0]]


def test_a_cursor_with_a_nul_byte_is_not_a_server_error(stack: Stack, api: httpx.Client) -> None:
    refused(api.get("/v1/models?after=%00"), 422, "cursor_invalid")


def test_a_patch_changes_what_it_names_and_nothing_else(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0.3, "adapt": {"after_changes": 7}})
    before = api.get(f"/v1/models/{name}").json()
    after = api.patch(f"/v1/models/{name}", json={"policy": {"adapt": {"every": None}, "promote": "manual"}})
    assert after.status_code == 200
    policy = {**before["policy"], "adapt": {"after_changes": 7, "every": None}, "promote": "manual"}
    assert after.json() == {**before, "policy": policy} == api.get(f"/v1/models/{name}").json()


def test_another_retention_of_versions_applies_to_all_versions(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    for change, expected in (({"promote": "manual"}, 7), ({"versions": {"keep": 9}}, 0)):
        with stack.database.write() as session:
            catalog.find(session, name, None).pruned_version = 7
        after = api.patch(f"/v1/models/{name}", json={"policy": change}).raise_for_status().json()
        with stack.database.read() as session:
            assert catalog.find(session, name, None).pruned_version == expected
    assert after["policy"]["versions"] == {"keep": 9, "every": "7d"}


def test_a_patch_of_the_holdout_keeps_its_fraction(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0.3})
    for change, expected in (
        ({"by": "example"}, {"fraction": 0.3, "by": "example"}),
        ({"fraction": 0.2}, {"fraction": 0.2, "by": "example"}),
        (0.4, 0.4),
    ):
        after = api.patch(f"/v1/models/{name}", json={"policy": {"holdout": change}}).json()
        assert after["policy"]["holdout"] == expected


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"holdout": 1.5}, ["policy", "holdout"]),
        ({"holdout": {"fraction": 1}}, ["policy", "holdout", "fraction"]),
        ({"holdout": {"by": "customer"}}, ["policy", "holdout", "by"]),
        ({"holdout": "most"}, ["policy", "holdout"]),
        ({"memory": {"fraction": 0}}, ["policy", "memory", "fraction"]),
        ({"memory": None}, ["policy", "memory"]),
        ({"colour": "red"}, ["policy", "colour"]),
        ({"certify": "sometimes"}, ["policy", "certify"]),
    ],
)
def test_a_bad_patch_changes_nothing(stack: Stack, api: httpx.Client, change: Any, loc: list[str]) -> None:
    name = stack.model()
    before = api.get(f"/v1/models/{name}").json()
    problem = refused(api.patch(f"/v1/models/{name}", json={"policy": {"promote": "manual", **change}}), 422)
    assert location(problem) == loc
    assert api.get(f"/v1/models/{name}").json() == before


def test_only_the_policy_can_be_patched(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    refused(api.patch(f"/v1/models/{name}", json={"policy": {}, "input": VECTOR}), 422, "request_invalid")


def test_deleting_a_model_deletes_everything_it_owns(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(10))
    stack.train(name)
    job = api.post(f"/v1/models/{name}/adaptations").json()["id"]
    files = set((stack.folder / "home" / "artifacts").rglob("*.safetensors"))
    assert api.delete(f"/v1/models/{name}").status_code == 204
    for path in ("", "/examples", "/versions", "/promotions", "/comparisons"):
        refused(api.get(f"/v1/models/{name}{path}"), 404, "model_not_found")
    refused(api.get(f"/v1/jobs/{job}"), 404, "job_not_found")
    refused(api.delete(f"/v1/models/{name}"), 404, "model_not_found")
    assert len(files - set((stack.folder / "home" / "artifacts").rglob("*"))) == 1


def test_a_name_can_be_used_again_after_a_deletion(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(10))
    stack.train(name)
    assert api.post(f"/v1/models/{name}/predictions", json={"inputs": [[0, 0]]}).status_code == 200
    api.delete(f"/v1/models/{name}")
    create(api, name)
    assert api.get(f"/v1/models/{name}/examples").json()["items"] == []
    refused(api.post(f"/v1/models/{name}/predictions", json={"inputs": [[0, 0]]}), 409, "champion_missing")


def test_the_rows_of_a_deleted_model_leave_the_database(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(3, "to-be-deleted-"))
    api.delete(f"/v1/models/{name}")
    with stack.database.read() as session:
        assert session.query(Example).where(Example.id.startswith("to-be-deleted-")).count() == 0
