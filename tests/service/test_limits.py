"""Bodies that are too large, damaged or incomplete are refused completely, and the service survives."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterable, Iterator

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.service.bodies import ARROW, BODIES, NDJSON, PARQUET, file, stream
from tests.service.conftest import PATIENCE, SMALL_BATCH, SMALL_BODY
from tests.service.expect import listed, refused, rows, soon
from tests.service.test_formats import send
from tests.stack import Stack

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("kind", BODIES)
def test_a_batch_above_the_limit_is_too_large(small: Stack, kind: str) -> None:
    name = small.model()
    with small.client() as api:
        assert send(api, name, BODIES[kind](rows(SMALL_BATCH)), kind).status_code == 201
        refused(send(api, name, BODIES[kind](rows(SMALL_BATCH + 1, "f")), kind), 413, "batch_too_large")
        assert len(listed(api, name)) == SMALL_BATCH


def test_a_body_above_the_limit_is_too_large_with_and_without_content_length(small: Stack) -> None:
    name = small.model()
    body = BODIES["application/json"](rows(1)).ljust(SMALL_BODY)
    with small.client() as api:
        assert send(api, name, body, "application/json").status_code == 201
        refused(send(api, name, body + b" ", "application/json"), 413, "body_too_large")
        pieces = (body[i : i + 1000] for i in range(0, len(body) * 2, 1000))
        answer = api.post(f"/v1/models/{name}/examples", content=(p or b" " * 1000 for p in pieces))
        refused(answer, 413, "body_too_large")
        refused(api.post("/v1/models", json={"name": "a" * SMALL_BODY}), 413, "body_too_large")


def test_clients_that_send_everything_before_reading_receive_the_413(small: Stack, stack: Stack) -> None:
    """As curl and Python's requests do; a connection that is closed on them would be all they tell of."""

    def send(to: Stack, pieces: Iterable[bytes], size: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", to.port, timeout=60)
        headers = {"Authorization": f"Bearer {to.admin_key}", "Content-Length": str(size)}
        headers["Content-Type"] = "application/json"
        connection.request("POST", "/v1/models", pieces, headers)
        with connection.getresponse() as answer:
            assert json.loads(answer.read())["code"] == "body_too_large"
            return answer.status

    def slowly() -> Iterator[bytes]:
        for _ in range(8):
            yield bytes(SMALL_BODY)
            time.sleep(PATIENCE / 5)  # longer in all than who sends nothing is waited for

    mega, most = bytes(2**20), 70
    assert send(stack, (mega for _ in range(most)), most * len(mega)) == 413
    assert send(small, slowly(), 8 * SMALL_BODY) == 413


def test_a_body_that_unpacks_to_far_more_than_the_limit_is_too_large(small: Stack) -> None:
    made = pa.table({"id": ["a"], "x": [[0.0, 0.0]], "y": [0], "z": pa.array([bytes(2**20)])})
    with small.client() as api:
        name = small.model()
        refused(send(api, name, file(made), PARQUET), 413, "body_too_large")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        refused(send(api, name, stream(made, options=options), ARROW), 413, "body_too_large")


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_no_flipped_bit_is_a_server_error(small: Stack, kind: str) -> None:
    """Readers of binary formats are known to fall over damaged lengths, and to take their process with them."""
    body, name = BODIES[kind](rows(3)), small.model()
    with small.client() as api:
        for i in range(0, len(body), 2):  # the lengths are in even places
            damaged = body[:i] + bytes([body[i] ^ 0x10]) + body[i + 1 :]
            answer = send(api, name, damaged, kind)
            assert answer.status_code in (201, 400, 409, 413, 422), (i, answer.text)
            if answer.status_code != 201:
                refused(answer, answer.status_code)


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_a_dictionary_of_huge_texts_is_refused_and_the_service_lives(
    stack: Stack, api: httpx.Client, kind: str
) -> None:
    """Such a body is small, and would unpack to gigabytes."""
    size, once = 4000, pa.array(["a" * 1_000_000])
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), once)
    made = pa.table({"id": ids, "x": pa.array([[0.0, 0.0]] * size), "y": [0] * size})
    answer = send(api, stack.model(), (stream if kind == ARROW else file)(made), kind)
    refused(answer, 422, "example_invalid")
    assert api.get("/healthz").status_code == 200


def test_an_upload_that_breaks_off_stores_nothing(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    line = b'{"id": "a%d", "x": [1, 2], "y": 1}\n'
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        head = (
            f"POST /v1/models/{name}/examples HTTP/1.1\r\nHost: amend\r\nAuthorization: Bearer {stack.admin_key}\r\n"
            f"Content-Type: {NDJSON}\r\nTransfer-Encoding: chunked\r\nX-Request-ID: broken-{name}\r\n\r\n"
        )
        connection.sendall(head.encode())
        for i in range(50):
            chunk = line % i
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    assert soon(lambda: f"broken-{name}" in stack.log.read_text())
    assert listed(api, name) == []
    assert "internal_error" not in stack.log.read_text()
