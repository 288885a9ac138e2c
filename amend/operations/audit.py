"""The audit log, and decisions about data of erased people that has returned."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Caller, Flow, Pages, list_of, path, without_none


class Audit(Caller):
    @listing
    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        model: str | None = None,
        erasure: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Pages[responses.AuditEntry]:
        """Iterate over who did what, when and from where, newest first. ``actor`` is the id of a key."""
        chosen = {"actor": actor, "action": action, "model": model, "erasure": erasure}
        first, last = (None if moment is None else moment.isoformat() for moment in (since, until))
        return Pages(responses.AuditEntry, path("audit"), without_none({**chosen, "since": first, "until": last}))

    @operation
    def accept_returned(self, model: str, ids: Iterable[str] | None = None) -> Flow[responses.ReturnedDecision]:
        """Put quarantined examples about people whose data was erased into force: all, or those with the given ids."""
        body = {"ids": None if ids is None else list_of(ids)}
        return self.ask(responses.ReturnedDecision, "POST", path("models", model, "returned", "accept"), body)

    @operation
    def discard_returned(self, model: str, ids: Iterable[str] | None = None) -> Flow[responses.ReturnedDecision]:
        """Discard quarantined examples about people whose data was erased: all, or those with the given ids."""
        body = {"ids": None if ids is None else list_of(ids)}
        return self.ask(responses.ReturnedDecision, "POST", path("models", model, "returned", "discard"), body)
