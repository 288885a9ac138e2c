"""Uploads that break off: a part is never taken for the whole."""

from __future__ import annotations

import socket
import time

import pytest

from tests.endurance.batches import SPEC, Batch, listed, post
from tests.stack import Stack

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_an_upload_that_breaks_off_stores_nothing(stack: Stack, chunked: bool) -> None:
    model = stack.model(**SPEC)
    line = b'{"id": "e%d", "x": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16], "y": 1}\n'
    part = b"".join(line % i for i in range(100))  # complete lines: it could be taken for all there is
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (2 * len(part))
    head = b"POST /v1/models/%s/examples HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %s\r\n%s\r\n" % (
        model.encode(),
        stack.admin_key.encode(),
        length,
    )
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(head + b"Content-Type: application/x-ndjson\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        time.sleep(0.1)
    with stack.client() as api:
        assert post(api, model, Batch(0, 3).body()).json()["last_position"] == 3
        assert len(listed(api, model)) == 3
