"""Erasures and receipts: what can be asked about people who ask to be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from client import answers
from client.errors import ErasureFailed
from client.flows import Caller, Flow, Pages, Params, Pause, call_of, listing, operation, path, without_none
from client.waiting import ended, id_of

# Seconds between two looks at an erasure.
LOOK_EVERY = 0.5


class Erasures(Caller):
    """One method for each thing to do."""

    @operation
    def erase(
        self, subject: str, *, reason: str | None = None, received_at: datetime | None = None
    ) -> Flow[answers.Erasure]:
        """Have a person forgotten by all models. A request that is open already is joined."""
        body = {"subject": subject, **without_none({"reason": reason, "received_at": received_at})}
        return self.ask(answers.Erasure, "POST", path("erasures"), body)

    @listing
    def erasures(self, *, state: str | None = None, overdue: bool | None = None) -> Pages[answers.Erasure]:
        """Erasures, the newest first."""
        params: Params = {"state": state, "overdue": overdue}
        return Pages(answers.Erasure, path("erasures"), without_none(params))

    @operation
    def erasure(self, id: str) -> Flow[answers.Erasure]:
        """One erasure, and how far each model is."""
        return self.ask(answers.Erasure, "GET", path("erasures", id))

    @operation
    def wait_for_erasure(
        self,
        erasure: answers.Erasure | str,
        *,
        progress: Callable[[answers.Erasure], object] | None = None,
        timeout: float | None = None,
    ) -> Flow[answers.Erasure]:
        """An erasure, once it is completed; ErasureFailed if it failed or was refused, TimeoutError as for jobs."""
        place = path("erasures", id_of(erasure))

        def look(seconds: float) -> Flow[answers.Erasure]:
            yield Pause(seconds)
            found = yield from self.ask(answers.Erasure, "GET", place)
            return found

        found = yield from ended(look, LOOK_EVERY, progress, timeout)
        if found.state != "completed":
            raise ErasureFailed(found)
        return found

    @operation
    def retry_erasure(self, id: str) -> Flow[answers.Erasure]:
        """Try again what failed."""
        return self.ask(answers.Erasure, "POST", path("erasures", id, "retry"))

    @operation
    def retry_erasures(self) -> Flow[answers.Retried]:
        """Try again all erasures that failed."""
        return self.ask(answers.Retried, "POST", path("erasures", "retry"))

    @operation
    def refuse_erasure(self, id: str, reason: str) -> Flow[answers.Erasure]:
        """Refuse a request. Examples that are out of force by then stay out."""
        return self.ask(answers.Erasure, "POST", path("erasures", id, "refuse"), {"reason": reason})

    @operation
    def extend_erasure(self, id: str, reason: str) -> Flow[answers.Erasure]:
        """Move the due date by two months, once (GDPR Art. 12(3))."""
        return self.ask(answers.Erasure, "POST", path("erasures", id, "extend"), {"reason": reason})

    @operation
    def replay_erasures(self) -> Flow[answers.Replayed]:
        """After a restore from a backup: carry out again what the receipts know and the database does not."""
        return self.ask(answers.Replayed, "POST", path("erasures", "replay"))

    @operation
    def receipt(self, erasure: answers.Erasure | str) -> Flow[dict[str, Any]]:
        """The receipt of a completed erasure, as it was hashed."""
        return self.ask(dict[str, Any], "GET", path("erasures", id_of(erasure), "receipt"))

    @operation
    def receipt_page(self, erasure: answers.Erasure | str) -> Flow[str]:
        """The receipt as an HTML page, to read and print."""
        call = call_of("GET", path("erasures", id_of(erasure), "receipt"), accept="text/html")
        response = yield from self.send(call)
        return response.text

    @operation
    def verify_receipts(self) -> Flow[answers.Chain]:
        """Walk the chain of receipts: one that is missing, altered or out of place is found."""
        return self.ask(answers.Chain, "GET", path("receipts", "verify"))
