"""Erasures and receipts: what can be asked about people who ask to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, cast

import httpx

from amend import responses
from amend.sansio import Caller, Flow, Pages, Params, list_of, listing, make_call, operation, path, without_none
from amend.waiting import await_erasure, id_of


class Erasures(Caller):
    """One method for each thing to do."""

    @operation
    def erase(
        self,
        subject: str,
        *,
        reason: str | None = None,
        received_at: datetime | str | None = None,
        hold: bool | None = None,
    ) -> Flow[responses.Erasure]:
        """Have a person forgotten by all models. A request that is open already is joined.

        With ``hold`` their examples are only taken out of force, until the request is approved or refused. A
        ``received_at`` without a time zone is UTC.
        """
        body = {"subject": subject, **without_none({"reason": reason, "received_at": received_at, "hold": hold})}
        return self.ask(responses.Erasure, "POST", path("erasures"), body)

    @operation
    def erase_all(self, subjects: Iterable[str], *, hold: bool | None = None) -> Flow[list[responses.Erasure]]:
        """Have many people forgotten, each by a request of their own; up to 1000 at once, all of them or none."""
        body = {"requests": [{"subject": subject, **without_none({"hold": hold})} for subject in list_of(subjects)]}
        found = yield from self.ask(responses.Erasures, "POST", path("erasures", "batch"), body)
        return found.items

    @operation
    def approve_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Have a request that was held carried out."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "approve"))

    @operation
    def look_up(self, subject: str) -> Flow[list[responses.Holding]]:
        """Which models have how many examples about a person."""
        found = yield from self.ask(responses.Lookup, "POST", path("subjects", "lookup"), {"subject": subject})
        return found.models

    @operation
    def export(self, subject: str) -> Flow[list[responses.ExportedExample]]:
        """All examples about a person, each with the name of its model (GDPR Art. 15 and 20)."""
        response = yield from self.send(make_call("POST", path("subjects", "export"), {"subject": subject}))
        lines = (httpx.Response(200, content=line) for line in response.content.splitlines())
        return [cast(responses.ExportedExample, self.read(dict[str, Any], line)) for line in lines]

    @listing
    def erasures(self, *, state: str | None = None, overdue: bool | None = None) -> Pages[responses.Erasure]:
        """Erasures, the newest first."""
        params: Params = {"state": state, "overdue": overdue}
        return Pages(responses.Erasure, path("erasures"), without_none(params))

    @operation
    def erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """One erasure, and how far each model is."""
        return self.ask(responses.Erasure, "GET", path("erasures", id_of(erasure)))

    @operation
    def wait_for_erasure(
        self,
        erasure: responses.Erasure | str,
        *,
        progress: Callable[[responses.Erasure], object] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Erasure]:
        """An erasure, once it is completed; TimeoutError as for jobs.

        ErasureFailed if it failed or was refused, and at once if it is held: it waits for an approval.
        """
        return await_erasure(self, id_of(erasure), progress, timeout)

    @operation
    def retry_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Try again what failed."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "retry"))

    @operation
    def retry_erasures(self) -> Flow[responses.Retried]:
        """Try again all erasures that failed."""
        return self.ask(responses.Retried, "POST", path("erasures", "retry"))

    @operation
    def refuse_erasure(self, erasure: responses.Erasure | str, reason: str) -> Flow[responses.Erasure]:
        """Refuse a request. What it took out of force comes back, and the models follow."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "refuse"), {"reason": reason})

    @operation
    def refusal(self, erasure: responses.Erasure | str) -> Flow[responses.Refusal]:
        """Why a request was refused, and what the person can do."""
        return self.ask(responses.Refusal, "GET", path("erasures", id_of(erasure), "refusal"))

    @operation
    def refusal_page(self, erasure: responses.Erasure | str) -> Flow[str]:
        """The same as a letter to print, in HTML."""
        return self.ask_page(path("erasures", id_of(erasure), "refusal"))

    @operation
    def extend_erasure(self, erasure: responses.Erasure | str, reason: str) -> Flow[responses.Erasure]:
        """Move the due date by two months, once and within the first month (GDPR Art. 12(3))."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "extend"), {"reason": reason})

    @operation
    def replay_erasures(self) -> Flow[responses.Replayed]:
        """After a restore from a backup: carry out again what the receipts know and the database does not."""
        return self.ask(responses.Replayed, "POST", path("erasures", "replay"))

    @operation
    def receipt(self, erasure: responses.Erasure | str) -> Flow[responses.Receipt]:
        """The receipt of a completed erasure, as it was hashed."""
        # a plain dictionary, in which nothing is left out: the hash is of all of it
        found = yield from self.ask(dict[str, Any], "GET", path("erasures", id_of(erasure), "receipt"))
        return cast(responses.Receipt, found)

    @operation
    def receipt_page(self, erasure: responses.Erasure | str) -> Flow[str]:
        """The receipt as an HTML page, to read and print."""
        return self.ask_page(path("erasures", id_of(erasure), "receipt"))

    def ask_page(self, place: str) -> Flow[str]:
        response = yield from self.send(make_call("GET", place, accept="text/html"))
        return response.text

    @operation
    def verify_receipts(self) -> Flow[responses.Chain]:
        """Walk the chain of receipts: one that is missing, altered or out of place is found."""
        return self.ask(responses.Chain, "GET", path("receipts", "verify"))
