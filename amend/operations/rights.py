"""What a person can ask for besides erasure: access, correction and restriction of processing; letters; statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Caller, Flow, Pages, Params, make_call, path, without_none
from amend.waiting import id_of


class Rights(Caller):
    @operation
    def look_up(self, subject: str) -> Flow[responses.ResponseList[responses.Holding]]:
        """The models that have examples of a person, with their number."""
        found = yield from self.ask(responses.Lookup, "POST", path("subjects", "lookup"), {"subject": subject})
        return responses.ResponseList(found.models)

    @operation
    def export(self, subject: str) -> Flow[responses.ResponseList[responses.ExportedExample]]:
        """All examples of a person, each with the name of its model (GDPR Art. 15 and 20)."""
        response = yield from self.send(make_call("POST", path("subjects", "export"), {"subject": subject}))
        lines = (httpx.Response(200, content=line) for line in response.content.splitlines())
        return responses.ResponseList([self.read(responses.ExportedExample, line) for line in lines])

    @operation
    def access_report(self, subject: str) -> Flow[str]:
        """A report for a person about the data that is stored about them, as an HTML page (GDPR Art. 15)."""
        call = make_call("POST", path("subjects", "export"), {"subject": subject}, accept="text/html")
        response = yield from self.send(call)
        return response.text

    @operation
    def find_requests(self, subject: str) -> Flow[responses.PastRequests]:
        """All requests from a person, open or not, with their receipts."""
        return self.ask(responses.PastRequests, "POST", path("subjects", "requests"), {"subject": subject})

    @operation
    def correct(
        self, subject: str, model: str, id: str, *, x: Any = None, y: Any = None, reference: str | None = None
    ) -> Flow[responses.Replaced]:
        """Correct an example about a person (GDPR Art. 16). Of a table, ``x`` has only the columns to change."""
        given = {"x": x, "y": y, "reference": reference}
        body = {"subject": subject, "model": model, "id": id, **without_none(given)}
        return self.ask(responses.Replaced, "POST", path("subjects", "correct"), body)

    @operation
    def restrict(
        self,
        subject: str,
        *,
        reason: str | None = None,
        received_at: datetime | str | None = None,
        reference: str | None = None,
    ) -> Flow[responses.Restriction]:
        """Restrict the processing of a person's data (GDPR Art. 18): it is kept, but not used until this is lifted."""
        given = {"reason": reason, "received_at": received_at, "reference": reference}
        return self.ask(
            responses.Restriction, "POST", path("restrictions"), {"subject": subject, **without_none(given)}
        )

    @listing
    def restrictions(self, *, state: str | None = None) -> Pages[responses.Restriction]:
        """Iterate over the restrictions that are in effect, newest first, or over those that were ``lifted``."""
        params: Params = {"state": state}
        return Pages(responses.Restriction, path("restrictions"), without_none(params))

    @operation
    def restriction(self, restriction: responses.Restriction | str) -> Flow[responses.Restriction]:
        """One restriction of processing."""
        return self.ask(responses.Restriction, "GET", path("restrictions", id_of(restriction)))

    @operation
    def lift_restriction(self, restriction: responses.Restriction | str, reason: str) -> Flow[responses.Restriction]:
        """Lift a restriction. Its examples become active again, and the models are adapted."""
        place = path("restrictions", id_of(restriction), "lift")
        return self.ask(responses.Restriction, "POST", place, {"reason": reason})

    @operation
    def letter(self, request: responses.Erasure | responses.Restriction | str, kind: str) -> Flow[responses.Letter]:
        """A letter about an erasure (confirmation, extension, completion, withdrawal) or a restriction (restriction,
        lifting)."""
        return self.ask(responses.Letter, "GET", letter_path(request, kind))

    @operation
    def letter_page(self, request: responses.Erasure | responses.Restriction | str, kind: str) -> Flow[str]:
        """The same letter as an HTML page with the controller's address."""
        response = yield from self.send(make_call("GET", letter_path(request, kind), accept="text/html"))
        return response.text

    @operation
    def erasure_statistics(self) -> Flow[responses.ResponseList[responses.Year]]:
        """Numbers of requests by the year in which they were received, newest first."""
        found = yield from self.ask(responses.Statistics, "GET", path("erasures", "statistics"))
        return responses.ResponseList(found.years)

    @operation
    def export_register(self, *, year: int | None = None) -> Flow[str]:
        """The register of requests, of one year or of all, as the text of a CSV file."""
        params: Params = {"year": year}
        response = yield from self.send(make_call("GET", path("erasures", "register"), params=without_none(params)))
        return response.text


def letter_path(request: responses.Erasure | responses.Restriction | str, kind: str) -> str:
    noun = "restrictions" if kind in ("restriction", "lifting") else "erasures"
    return path(noun, id_of(request), "letters", kind)
