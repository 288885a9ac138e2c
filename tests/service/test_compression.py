"""Compressed bodies are equivalent to their content, with the same limits."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import httpx
import pyarrow as pa
import pytest

from service.http.json_bodies import MAX_JSON_BYTES
from tests.service.bodies import BODIES
from tests.service.conftest import SMALL_BODY
from tests.service.expect import listed, refused, rows
from tests.stack import Stack

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda body: pa.Codec("zstd").compress(body, asbytes=True),
}
JSON = "application/json"


def send(api: httpx.Client, name: str, body: bytes, encoding: str, kind: str = JSON, **headers: str) -> httpx.Response:
    headers = {"Content-Type": kind, "Content-Encoding": encoding, **headers}
    return api.post(f"/v1/models/{name}/examples", content=body, headers=headers)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", BODIES)
def test_a_compressed_body_is_equivalent_to_its_content(stack: Stack, api: httpx.Client, codec: str, kind: str) -> None:
    name, body = stack.model(), BODIES[kind](rows(20))
    assert send(api, name, CODECS[codec](body), codec.upper(), kind).json()["accepted"] == 20
    again = api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": kind})
    assert again.json()["duplicates"] == 20


@pytest.mark.parametrize("codec", CODECS)
def test_a_repeated_request_is_the_same_whether_compressed_or_not(stack: Stack, api: httpx.Client, codec: str) -> None:
    name, body = stack.model(), BODIES[JSON](rows(3))
    first = send(api, name, CODECS[codec](body), codec, **{"Idempotency-Key": name})
    plain = send(api, name, body, "identity", **{"Idempotency-Key": name})
    assert first.json() == plain.json()
    assert plain.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("codec", CODECS)
def test_every_endpoint_accepts_compressed_bodies(stack: Stack, api: httpx.Client, codec: str) -> None:
    name = stack.model()
    body = CODECS[codec](b'{"policy": {"holdout": 0.5}}')
    headers = {"Content-Type": JSON, "Content-Encoding": codec}
    assert api.patch(f"/v1/models/{name}", content=body, headers=headers).json()["policy"]["holdout"] == 0.5


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_that_decompresses_above_the_limit_is_too_large(small: Stack, codec: str) -> None:
    name = small.model()
    with small.client() as api:
        fits = BODIES[JSON](rows(1)).ljust(SMALL_BODY)
        assert send(api, name, CODECS[codec](fits), codec).status_code == 201
        problem = refused(send(api, name, CODECS[codec](fits + b" "), codec), 413, "body_too_large")
        assert str(SMALL_BODY) in problem["detail"]
        assert len(listed(api, name)) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_is_unpacked(stack: Stack, api: httpx.Client, codec: str) -> None:
    """It would unpack to 8 GiB."""
    bomb = CODECS[codec](bytes(2**25)) * 2**8
    refused(send(api, stack.model(), bomb, codec), 413, "body_too_large")
    assert api.get("/healthz").status_code == 200


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damage", [lambda body: body[:-5], lambda body: body + b"more", lambda _: b"none of it"])
def test_a_damaged_body_is_malformed(
    stack: Stack, api: httpx.Client, codec: str, damage: Callable[[bytes], bytes]
) -> None:
    name = stack.model()
    body = damage(CODECS[codec](BODIES[JSON](rows(50))))
    assert codec in refused(send(api, name, body, codec), 400, "body_malformed")["detail"]
    assert listed(api, name) == []


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", ""])
def test_other_encodings_are_unsupported(stack: Stack, api: httpx.Client, encoding: str) -> None:
    body = BODIES[JSON](rows(1))
    problem = refused(send(api, stack.model(), body, encoding), 415, "content_encoding_unsupported")
    assert "gzip or zstd" in problem["detail"]


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_is_unpacked_for_a_key_without_the_scope(stack: Stack, codec: str) -> None:
    with stack.client(stack.key("read")) as reader:
        refused(send(reader, stack.model(), b"none of it", codec), 403, "scope_missing")


@pytest.mark.parametrize("codec", CODECS)
def test_decompressed_json_objects_have_their_own_limit(stack: Stack, api: httpx.Client, codec: str) -> None:
    body = b'{"ids": ["a"]}'.ljust(MAX_JSON_BYTES)
    headers = {"Content-Type": JSON, "Content-Encoding": codec}
    path = f"/v1/models/{stack.model()}/removals"
    assert api.post(path, content=CODECS[codec](body), headers=headers).status_code == 202
    problem = refused(api.post(path, content=CODECS[codec](body + b" "), headers=headers), 413, "body_too_large")
    assert f"exceeds the limit of {MAX_JSON_BYTES} bytes" in problem["detail"]
