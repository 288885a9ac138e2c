"""The audit log of requests: who sent them, from where, and what they did.

`UnitOfWork` writes the entry of every request that changes something, in the same transaction. Endpoints that export or
look up personal data write theirs with an `Auditor`, before the response is sent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.types import Scope

from core.audit import entries
from core.audit.entries import NOTHING, About, Origin
from core.tables.audit import Action
from service.context import Context, context_of
from service.http.auth import Caller

Subjects = About | Callable[[Any], Iterable[About]]
"""What a request is about: known beforehand, or one or more objects that its result names."""
COUNTED = ("accepted", "duplicates", "examples", "quarantined", "removed", "replaced", "unchanged", "unknown")
"""Fields of responses that the log keeps as counts; of lists, their lengths."""


@dataclass(frozen=True)
class Auditor:
    """Writes the entries of one request."""

    context: Context
    request_id: str
    client: str | None

    def origin(self, caller: Caller) -> Origin:
        return Origin(caller.key_id, self.client, self.request_id)

    def record(self, session: Session, caller: Caller, action: Action, about: About = NOTHING) -> None:
        """Write an entry in the transaction of the action."""
        entries.record(session, self.origin(caller), action, about)

    def record_result(self, session: Session, caller: Caller, action: Action, about: Subjects, result: object) -> None:
        """Write the entries of an action with its result, in the transaction of the action."""
        for one in about(result) if callable(about) else [about]:
            self.record(session, caller, action, with_result(one, result))

    def record_read(self, caller: Caller, action: Action, about: About = NOTHING) -> None:
        """Write an entry in a transaction of its own, before data leaves the service."""
        with self.context.database.write() as session:
            self.record(session, caller, action, about)


def with_result(about: About, result: object) -> About:
    """Add the counts and the job of a response to what the request is about."""
    if not isinstance(result, BaseModel):
        return about
    found: dict[str, int] = {}
    for name in COUNTED:
        value = getattr(result, name, None)
        count = len(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        if isinstance(count, int) and count:
            found[name] = count
    job = getattr(result, "job", None)
    return replace(about, counts=found | about.counts, job_id=about.job_id or (job if isinstance(job, str) else None))


def client_of(scope: Scope) -> str | None:
    """The address that a request came from. Behind proxies that AMEND_TRUSTED_PROXIES names, uvicorn has replaced that
    of the proxy."""
    client = scope.get("client")
    return str(client[0])[:45] if client else None


async def get_auditor(request: Request) -> Auditor:
    return Auditor(context_of(request), request.state.request_id, client_of(request.scope))


AuditorDep = Annotated[Auditor, Depends(get_auditor)]
