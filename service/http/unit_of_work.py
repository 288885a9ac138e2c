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
from core.audit.entries import NOTHING
from core.database import release_locks_early
from core.errors import Invalid
from core.idempotency import RepeatableRequest
from core.ledger import journal
from core.tables.audit import Action
from service.http.auth import Caller
from service.http.request_audit import Auditor, AuditorDep, Subjects

KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,255}")


class UnitOfWork:
    """Runs a request in one transaction: everything is stored, including the response, or nothing."""

    def __init__(self, auditor: Auditor, key: str | None = None, fingerprint: bytes = b"") -> None:
        self.auditor = auditor
        self.context = auditor.context
        self.request_id = auditor.request_id
        self.key = key
        self.fingerprint = fingerprint

    def __call__(
        self,
        caller: Caller,
        status: int,
        act: Callable[[Session], BaseModel | bytes],
        action: Action | None,
        about: Subjects = NOTHING,
    ) -> Response:
        """Run `act` and write the entry of the audit log; without an action, only the response is stored.

        A repeated request writes no second entry.
        """
        return self.with_status(caller, lambda session: (status, act(session)), action, about)

    def with_status(
        self,
        caller: Caller,
        act: Callable[[Session], tuple[int, BaseModel | bytes]],
        action: Action | None,
        about: Subjects = NOTHING,
    ) -> Response:
        """As a call, for an action that decides on the status."""
        request = None if self.key is None else RepeatableRequest(caller.credential, self.key, self.fingerprint)
        age = timedelta(hours=self.context.settings.idempotency_hours)
        with self.context.database.write() as session:
            if request and (first := idempotency.claim(session, request, age)):
                release_locks_early(session)  # committing waits until the first request is on disk
                return Response(first[1], first[0], {"Idempotent-Replayed": "true"}, "application/json")
            status, result = act(session)
            if action is not None:
                self.auditor.record_result(session, caller, action, about, result)
            body = result if isinstance(result, bytes) else result.model_dump_json().encode()
            if request:
                idempotency.store(session, request, status, body)
            done = session.info
        if done.get("message_enqueued"):
            self.context.outbox_sender.wake()
        if done.get("register_grew") or done.get(journal.CHANGED):
            self.context.write_register_files()
        return Response(body, status, media_type="application/json")


async def get_unit_of_work(
    request: Request,
    auditor: AuditorDep,
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
    return UnitOfWork(auditor, idempotency_key, fingerprint)


Write = Annotated[UnitOfWork, Depends(get_unit_of_work)]
