"""Erasure requests, receipts, and data about a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, cast

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
        aliases: Iterable[str] = (),
        reason: str | None = None,
        received_at: datetime | str | None = None,
        reference: str | None = None,
        hold: bool | None = None,
    ) -> Flow[responses.Erasure]:
        """Request the erasure of a person from all models. If a request for the person is open, return that one.

        ``aliases`` are other identifiers of the same person. If no example has any of the identifiers, the request is
        `unmatched` and waits for a decision. With ``hold``, the person's examples are only deactivated until the
        request is approved or refused. A ``received_at`` without a time zone is taken as UTC.
        """
        given = {"reason": reason, "received_at": received_at, "reference": reference, "hold": hold}
        others = list_of(aliases)
        body = {"subject": subject, **without_none({"subjects": others or None, **given})}
        return self.ask(responses.Erasure, "POST", path("erasures"), body)

    @operation
    def erase_all(
        self, requests: Iterable[str | Mapping[str, Any]], *, hold: bool | None = None
    ) -> Flow[responses.ResponseList[responses.Erasure]]:
        """Request the erasure of up to 1000 people. Either all requests are accepted, or none.

        A request is a subject, or a mapping with `subject`, `subjects`, `received_at`, `reference` and `reason`.
        """
        many = [requests] if isinstance(requests, str) else requests
        given = [{"subject": one} if isinstance(one, str) else dict(one) for one in many]
        body = {"requests": [{**without_none({"hold": hold}), **one} for one in given]}
        found = yield from self.ask(responses.Erasures, "POST", path("erasures", "batch"), body)
        return responses.ResponseList(found.items)

    @operation
    def approve_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Approve a request that is held, or complete one that is unmatched."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "approve"))

    @operation
    def hold_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """Hold a request in progress until it is approved, refused or withdrawn."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "hold"))

    @operation
    def withdraw_erasure(self, erasure: responses.Erasure | str) -> Flow[responses.Erasure]:
        """End a request because the person has withdrawn it. Its examples become active again."""
        return self.ask(responses.Erasure, "POST", path("erasures", id_of(erasure), "withdraw"))

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

        Raises ErasureFailed if the erasure failed or was refused, and immediately if it is held or unmatched. Raises
        TimeoutError after ``timeout`` seconds; the erasure continues.
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
        """After a restore from a backup, repeat all later actions that concern people, as the store recorded them."""
        return self.ask(responses.Replayed, "POST", path("erasures", "replay"))

    @operation
    def receipt(self, erasure: responses.Erasure | str) -> Flow[responses.Receipt]:
        """The receipt of a completed erasure, with all fields of the signed statement."""
        # A plain dictionary, because the signature covers every field.
        found = yield from self.ask(dict[str, Any], "GET", path("erasures", id_of(erasure), "receipt"))
        return cast(responses.Receipt, found)

    @operation
    def receipt_page(self, erasure: responses.Erasure | str, *, subjects: Iterable[str] = ()) -> Flow[str]:
        """The receipt as an HTML page.

        ``subjects`` are the identifiers of the request, to be printed on the page exactly as spelt: the service stores
        only hashes of them. Raises Conflict if the request did not search for one of them.
        """
        place, spelt = path("erasures", id_of(erasure), "receipt"), list_of(subjects)
        if not spelt:
            return self.ask_page(place)
        return self.ask_page(place, {"subjects": spelt})

    @operation
    def notices(self, erasure: responses.Erasure | str) -> Flow[list[responses.Notice]]:
        """Drafts of notices to the recipients of copies of the erased data (GDPR Art. 19)."""
        found = yield from self.ask(responses.Notices, "GET", path("erasures", id_of(erasure), "notices"))
        return found.items

    def ask_page(self, place: str, body: dict[str, Any] | None = None) -> Flow[str]:
        method = "GET" if body is None else "POST"
        response = yield from self.send(make_call(method, place, body, accept="text/html"))
        return response.text

    @operation
    def verify_receipts(self, older_head: Mapping[str, Any] | None = None) -> Flow[responses.Verification]:
        """Verify the register, its files, the receipts and the requests.

        With a signed head that was kept earlier, also verify that the register extends it.
        """
        params: Params = {} if older_head is None else {"size": older_head["size"], "root": older_head["root"]}
        return self.ask(responses.Verification, "GET", path("receipts", "verify"), **params)

    @listing
    def receipts(self) -> Pages[responses.ReceiptItem]:
        """Iterate over the receipts, newest first."""
        return Pages(responses.ReceiptItem, path("receipts"), {})

    @operation
    def envelope(self, number: int) -> Flow[dict[str, Any]]:
        """A receipt as a DSSE envelope with an in-toto statement, and the proof that the register contains it."""
        return self.ask(dict[str, Any], "GET", path("receipts", str(number)))

    @operation
    def bundle(
        self, erasure: responses.Erasure | str, *, rows: bool = False, older_size: int | None = None
    ) -> Flow[bytes]:
        """The evidence about an erasure, as the bytes of a zip file that ``amend verify`` checks.

        ``rows`` adds the retained rows, and requires the scope `admin`. ``older_size`` adds a proof that the register
        extends an older head of this size.
        """
        params: Params = {"rows": rows or None, "from": older_size}
        place = path("erasures", id_of(erasure), "bundle")
        response = yield from self.send(make_call("GET", place, params=without_none(params)))
        return response.content

    @operation
    def register_head(self) -> Flow[dict[str, Any]]:
        """The newest signed head of the register. Keep it: a later register must extend it."""
        return self.ask(dict[str, Any], "GET", path("register", "head"))

    @operation
    def register_key(self) -> Flow[dict[str, Any]]:
        """The public key of the register, and the keys that it replaced."""
        return self.ask(dict[str, Any], "GET", path("register", "key"))
