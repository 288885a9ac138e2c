"""Erasure requests, receipts, and data about a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, cast

import httpx

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Caller, Flow, Pages, Params, list_of, make_call, path, without_none
from amend.waiting import await_erasure, id_of


class Erasures(Caller):
    @operation
    def erase(
        self,
        subject: str,
        *,
        reason: str | None = None,
        received_at: datetime | str | None = None,
        hold: bool | None = None,
    ) -> Flow[responses.Erasure]:
        """Request the erasure of a person from all models. If a request for the person is open, return that one.

        With ``hold``, the person's examples are only deactivated until the request is approved or refused. A
        ``received_at`` without a time zone is taken as UTC.
        """
        body = {"subject": subject, **without_none({"reason": reason, "received_at": received_at, "hold": hold})}
        return self.ask(responses.Erasure, "POST", path("erasures"), body)

    @operation
    def erase_all(self, subjects: Iterable[str], *, hold: bool | None = None) -> Flow[list[responses.Erasure]]:
        """Request the erasure of up to 1000 people. Either all requests are accepted, or none."""
        body = {"requests": [{"subject": subject, **without_none({"hold": hold})} for subject in list_of(subjects)]}
        found = yield from self.ask(responses.Erasures, "POST", path("erasures", "batch"), body)
        return found.items

    @operation
    def approve_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Approve a held request."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "approve"))

    @operation
    def look_up(self, subject: str) -> Flow[list[responses.Holding]]:
        """The models that have examples of a person, with their number."""
        found = yield from self.ask(responses.Lookup, "POST", path("subjects", "lookup"), {"subject": subject})
        return found.models

    @operation
    def export(self, subject: str) -> Flow[list[responses.ExportedExample]]:
        """All examples of a person, each with the name of its model (GDPR Art. 15 and 20)."""
        response = yield from self.send(make_call("POST", path("subjects", "export"), {"subject": subject}))
        lines = (httpx.Response(200, content=line) for line in response.content.splitlines())
        return [cast(responses.ExportedExample, self.read(dict[str, Any], line)) for line in lines]

    @listing
    def erasures(self, *, state: str | None = None, overdue: bool | None = None) -> Pages[responses.Erasure]:
        """Iterate over erasures, newest first."""
        params: Params = {"state": state, "overdue": overdue}
        return Pages(responses.Erasure, path("erasures"), without_none(params))

    @operation
    def erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """One erasure, with its progress in each model."""
        return self.ask(responses.Erasure, "GET", path("erasures", id_of(erasure)))

    @operation
    def wait_for_erasure(
        self,
        erasure: responses.Erasure | str,
        *,
        progress: Callable[[responses.Erasure], object] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Erasure]:
        """Wait for an erasure to complete and return it. ``progress`` is called with each state.

        Raises ErasureFailed if the erasure failed or was refused, and immediately if it is held. Raises TimeoutError
        after ``timeout`` seconds; the erasure continues.
        """
        return await_erasure(self, id_of(erasure), progress, timeout)

    @operation
    def retry_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Retry a failed erasure."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "retry"))

    @operation
    def retry_erasures(self) -> Flow[responses.Retried]:
        """Retry all failed erasures."""
        return self.ask(responses.Retried, "POST", path("erasures", "retry"))

    @operation
    def refuse_erasure(self, erasure: responses.Erasure | str, reason: str) -> Flow[responses.Erasure]:
        """Refuse a request. Its examples become active again, and the models are adapted."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "refuse"), {"reason": reason})

    @operation
    def refusal(self, erasure: responses.Erasure | str) -> Flow[responses.Refusal]:
        """The notice of a refusal: the reason, and what the person can do."""
        return self.ask(responses.Refusal, "GET", path("erasures", id_of(erasure), "refusal"))

    @operation
    def refusal_page(self, erasure: responses.Erasure | str) -> Flow[str]:
        """The notice of a refusal as an HTML letter."""
        return self.ask_page(path("erasures", id_of(erasure), "refusal"))

    @operation
    def extend_erasure(self, erasure: responses.Erasure | str, reason: str) -> Flow[responses.Erasure]:
        """Extend the due date by two months, once and within the first month (GDPR Art. 12(3))."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "extend"), {"reason": reason})

    @operation
    def replay_erasures(self) -> Flow[responses.Replayed]:
        """Repeat, after a restore from a backup, the erasures that have a receipt but are missing from the database."""
        return self.ask(responses.Replayed, "POST", path("erasures", "replay"))

    @operation
    def receipt(self, erasure: responses.Erasure | str) -> Flow[responses.Receipt]:
        """The receipt of a completed erasure, with all fields that its hash covers."""
        # A plain dictionary, because the hash covers every field.
        found = yield from self.ask(dict[str, Any], "GET", path("erasures", id_of(erasure), "receipt"))
        return cast(responses.Receipt, found)

    @operation
    def receipt_page(self, erasure: responses.Erasure | str) -> Flow[str]:
        """The receipt as an HTML page."""
        return self.ask_page(path("erasures", id_of(erasure), "receipt"))

    def ask_page(self, place: str) -> Flow[str]:
        response = yield from self.send(make_call("GET", place, accept="text/html"))
        return response.text

    @operation
    def verify_receipts(self) -> Flow[responses.Chain]:
        """Verify the hash chain of the receipts, and list those that are missing, altered or out of order."""
        return self.ask(responses.Chain, "GET", path("receipts", "verify"))
