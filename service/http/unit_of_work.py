"""One transaction per writing request, and the stored response for a repeated one (Idempotency-Key)."""

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Header, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import idempotency
from core.database import release_locks_early
from core.errors import Invalid
from core.idempotency import RepeatableRequest
from service.context import Context, context_of

KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,255}")


class UnitOfWork:
    """Runs a request in one transaction: everything is stored, including the response, or nothing."""

    def __init__(self, context: Context, request_id: str, key: str | None, fingerprint: bytes) -> None:
        self.context = context
        self.request_id = request_id
        self.key = key
        self.fingerprint = fingerprint

    def __call__(self, credential: str, status: int, act: Callable[[Session], BaseModel | bytes]) -> Response:
        request = None if self.key is None else RepeatableRequest(credential, self.key, self.fingerprint)
        age = timedelta(hours=self.context.settings.idempotency_hours)
        with self.context.database.write() as session:
            if request and (first := idempotency.claim(session, request, age)):
                release_locks_early(session)  # committing waits until the first request is on disk
                return Response(first[1], first[0], {"Idempotent-Replayed": "true"}, "application/json")
            result = act(session)
            body = result if isinstance(result, bytes) else result.model_dump_json().encode()
            if request:
                idempotency.store(session, request, status, body)
            enqueued = session.info.get("message_enqueued")
        if enqueued:
            self.context.outbox_sender.wake()
        return Response(body, status, media_type="application/json")


async def get_unit_of_work(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(description="Key that you choose. A repeated request with the same key returns the first response."),
    ] = None,
) -> UnitOfWork:
    fingerprint = b""
    if idempotency_key is not None:
        if not KEY_PATTERN.fullmatch(idempotency_key):
            raise Invalid("idempotency_key_invalid", "An Idempotency-Key has 1 to 255 visible ASCII characters.")
        identity = f"{request.method} {request.url.path} {request.headers.get('content-type')}\n".encode()
        fingerprint = hashlib.sha256(identity + await request.body()).digest()
    return UnitOfWork(context_of(request), request.state.request_id, idempotency_key, fingerprint)


Write = Annotated[UnitOfWork, Depends(get_unit_of_work)]
