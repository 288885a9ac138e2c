"""Uploaded encoders: stored by their digest, described, kept while models use them; hostile files are refused."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import httpx
import pytest

from tests.core.encoders import hostile, projection, words
from tests.stack import Stack

CONTENT, W = projection(3, 5)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
HOSTILE = hostile()


def upload(api: httpx.Client, content: bytes, **params: Any) -> httpx.Response:
    return api.post("/v1/encoders", content=content, params=params)


def test_an_encoder_is_stored_described_and_deleted_once_no_model_uses_it(stack: Stack, api: httpx.Client) -> None:
    made = upload(api, CONTENT)
    assert made.status_code == 201, made.text
    described = made.json()
    assert (described["digest"], described["features"], described["trained_on"]) == (DIGEST, 5, "other")
    assert described["inputs"] == [{"name": "x", "type": "tensor(float)", "shape": [None, 3]}]
    assert upload(api, CONTENT).json() == described
    assert upload(api, CONTENT, trained_on="examples").json()["code"] == "encoder_conflict"
    assert api.get(f"/v1/encoders/{DIGEST}").json() == described
    assert described in api.get("/v1/encoders").json()["items"]
    architecture = {"kind": "linear", "encoder": {"kind": "onnx", "digest": DIGEST}}
    name = stack.model(input={"kind": "vector", "dim": 3}, architecture=architecture)
    spec = api.get(f"/v1/models/{name}").json()["architecture"]
    assert spec["encoder"] == {"kind": "onnx", "digest": DIGEST, "features": 5, "trained_on": "other"}
    refused = api.delete(f"/v1/encoders/{DIGEST}")
    assert (refused.status_code, refused.json()["code"]) == (409, "encoder_in_use")
    api.delete(f"/v1/models/{name}").raise_for_status()
    assert api.delete(f"/v1/encoders/{DIGEST}").status_code == 204
    assert api.get(f"/v1/encoders/{DIGEST}").json()["code"] == "encoder_not_found"


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_do_not_affect_the_service(api: httpx.Client, kind: str) -> None:
    refused = upload(api, HOSTILE[kind])
    assert (refused.status_code, refused.json()["code"]) == (422, "encoder_invalid"), refused.text
    assert len(refused.json()["detail"]) < 500
    assert api.get("/healthz").status_code == 200


def test_an_encoder_may_be_larger_than_other_bodies(api: httpx.Client, stack: Stack) -> None:
    content = b"\x08\x0a" + bytes(stack.settings.max_body_bytes)
    refused = upload(api, content)
    assert (refused.status_code, refused.json()["code"]) == (422, "encoder_invalid"), refused.text
    assert api.post(f"/v1/models/{stack.model()}/examples", content=content).status_code == 413


def test_the_service_responds_while_it_examines_a_hostile_file(api: httpx.Client, stack: Stack) -> None:
    with stack.client() as other:
        thread = threading.Thread(target=upload, args=(other, HOSTILE["huge constant"]))
        thread.start()
        assert api.get("/healthz").status_code == 200
        thread.join()


@pytest.mark.parametrize(
    ("given", "encoder", "code"),
    [
        ({"kind": "vector", "dim": 3}, {"kind": "onnx", "digest": "sha256:" + "0" * 64}, "encoder_not_found"),
        ({"kind": "vector", "dim": 4}, {"kind": "onnx", "digest": DIGEST}, "encoder_unsuitable"),
        ({"kind": "text"}, {"kind": "onnx", "digest": DIGEST}, "encoder_unsuitable"),
        ({"kind": "vector", "dim": 3}, {"kind": "onnx", "digest": DIGEST, "features": 9}, "encoder_mismatch"),
        ({"kind": "vector", "dim": 3}, {"kind": "onnx", "digest": "md5:1"}, "request_invalid"),
        ({"kind": "vector", "dim": 3}, {"kind": "hashing", "features": 8}, "request_invalid"),
        ({"kind": "text"}, {"kind": "plugin", "name": "nothing"}, "encoder_not_found"),
        ({"kind": "text"}, None, "request_invalid"),
    ],
)
def test_models_with_unsuitable_encoders_are_refused(api: httpx.Client, given: Any, encoder: Any, code: str) -> None:
    upload(api, CONTENT).raise_for_status()
    architecture = {"kind": "linear", **({"encoder": encoder} if encoder else {})}
    body = {"name": "unsuitable", "input": given, "target": {"kind": "binary"}, "architecture": architecture}
    refused = api.post("/v1/models", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text


def test_texts_are_validated(stack: Stack, api: httpx.Client) -> None:
    encoder = {"kind": "hashing", "features": 8}
    name = stack.model(input={"kind": "text"}, architecture={"kind": "linear", "encoder": encoder})
    for x, code in ((5, "example_invalid"), (None, "example_invalid"), ("x" * (2**20 + 1), "text_too_long")):
        refused = api.post(f"/v1/models/{name}/examples", json={"examples": [{"id": "a", "x": x, "y": 1}]})
        assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text
    body = b'{"examples": [{"id": "a", "x": "\\ud800", "y": 1}]}'
    surrogate = api.post(f"/v1/models/{name}/examples", content=body, headers={"content-type": "application/json"})
    assert 400 <= surrogate.status_code < 500
    texts = ["", "nul \0 byte", "Ünïcödé 🎉", 'a,b\n"c"']
    rows = [{"id": str(i), "x": text, "y": 1} for i, text in enumerate(texts)]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).json()["accepted"] == 4
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).json()["duplicates"] == 4
    other = [{**rows[0], "x": " "}]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": other}).json()["code"] == "example_conflict"
    found = api.get(f"/v1/models/{name}/examples").json()["items"]
    assert [row["x"] for row in found] == texts


def test_words_are_an_encoder_of_texts(api: httpx.Client) -> None:
    described = upload(api, words(["good", "bad"])).json()
    assert (described["features"], described["inputs"][0]["type"]) == (2, "tensor(string)")
