"""Examples of any number, sent in batches: what adding, correcting and importing share."""

from __future__ import annotations

import httpx

from amend import batches
from amend.batches import Examples
from amend.errors import ApiError
from amend.sansio import Caller, Flow, make_call, path


class ExampleSender(Caller):
    """Calls that are as many as the examples need."""

    def send_batches(self, method: str, model: str, examples: Examples) -> Flow[list[httpx.Response]]:
        """Send examples of any number; the answers. An error tells places among all of them."""
        answers, sent = [], 0
        for batch in batches.split(examples):
            place = path("models", model, "examples")
            call = make_call(method, place, content=batch.content, content_type=batch.content_type)
            try:
                answers.append((yield from self.send(call)))
            except ApiError as error:
                raise error.move_by(sent) from None
            sent += batch.count
        return answers
