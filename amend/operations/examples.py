"""Adding, correcting, listing and removing examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from amend import dataframes, example_batches, responses
from amend.client_methods import listing, operation
from amend.errors import ApiError
from amend.example_batches import Batch, Examples
from amend.example_files import ExampleFile
from amend.requests import Caller, Flow, Pages, list_of, make_call, path, without_none

Sum = TypeVar("Sum", responses.Added, responses.Replaced)


class ExampleOperations(Caller):
    """Methods for examples. Any number can be passed; they are sent in batches."""

    @operation
    def add_examples(
        self,
        model: str,
        examples: Examples | Path,
        *,
        id: str | None = None,
        subject: str | None = None,
        target: str | None = None,
        weight: str | None = None,
        time: str | None = None,
        source: str | None = None,
    ) -> Flow[responses.Added]:
        """Add examples.

        ``examples`` is a pandas frame or another table, columns (``{"id": ids, "x": array, "y": array}``), an iterable
        of examples (``{"id": "a1", "subject": "user-7", "x": [...], "y": 1}``), or the ``Path`` of a file of any size:
        .parquet, .arrow, .csv, .ndjson or .json, the last three also as .gz or .zst. ``id``, ``subject``, ``target``,
        ``weight`` and ``time`` are the names of these columns in a frame or file, if they differ from ``id``,
        ``subject``, ``y``, ``weight`` and ``time``. ``source`` is a name for the load, by which the examples can be
        listed and removed; it applies to all examples that have no ``source`` of their own.

        Examples are sent in batches, each stored completely or not at all; an iterable is read lazily. If a batch is
        rejected, the batches before it remain stored. Adding the same examples again is safe: they are counted as
        duplicates. If a response is lost, the client sends the batch again and counts it once.
        """
        bodies = make_bodies(examples, id=id, subject=subject, y=target, weight=weight, time=time)
        return self.send_batches(responses.Added, "POST", model, bodies, source)

    @operation
    def replace_example(
        self,
        model: str,
        id: str,
        x: Any,
        y: Any,
        *,
        subject: str | None = None,
        split: str | None = None,
        weight: float | None = None,
    ) -> Flow[responses.Replaced]:
        """Replace an active example, and adapt the model.

        ``subject``, ``split`` and ``weight`` keep their values if they are omitted. Replacing an example with the same
        content does nothing.
        """
        body = {"x": x, "y": y, **without_none({"subject": subject, "split": split, "weight": weight})}
        return self.ask(responses.Replaced, "PUT", path("models", model, "examples", id), body)

    @operation
    def correct_label(self, model: str, id: str, y: Any) -> Flow[responses.Replaced]:
        """Replace the label of an active example, for example a suspicious one, and adapt the model."""
        found = yield from self.ask(responses.Example, "GET", path("models", model, "examples", id))
        body = {"x": found.x, "y": y}
        return (yield from self.ask(responses.Replaced, "PUT", path("models", model, "examples", id), body))

    @operation
    def replace_examples(
        self,
        model: str,
        examples: Examples | Path,
        *,
        id: str | None = None,
        subject: str | None = None,
        target: str | None = None,
        weight: str | None = None,
        time: str | None = None,
    ) -> Flow[responses.Replaced]:
        """Replace active examples by their ids. Takes the same arguments as ``add_examples``, except ``source``.

        Each batch is applied completely or not at all. If a batch is rejected, the batches before it remain applied;
        it is safe to send all examples again.
        """
        bodies = make_bodies(examples, id=id, subject=subject, y=target, weight=weight, time=time)
        return self.send_batches(responses.Replaced, "PUT", model, bodies)

    @operation
    def add_labels(
        self,
        model: str,
        labels: Mapping[str, Any] | Examples | Path,
        *,
        id: str | None = None,
        target: str | None = None,
    ) -> Flow[responses.Labelled]:
        """Add the labels of examples that were stored without one.

        ``labels`` maps ids to labels, or is a frame or another table with the columns ``id`` and ``y``, an iterable of
        ``{"id": "a1", "y": 1}``, or the ``Path`` of a file. ``id`` and ``target`` are the names of these columns in a
        frame or file, if they differ.

        Labels are sent in batches. Sending the same labels again is safe: they are counted as duplicates. A different
        label raises ``ApiError`` with the code ``label_conflict``.
        """
        if isinstance(labels, Mapping) and not {"id", "y"} <= labels.keys():
            labels = [{"id": key, "y": y} for key, y in labels.items()]
        return self.send_labels(model, make_bodies(labels, id=id, y=target))

    @listing
    def examples(
        self,
        model: str,
        *,
        state: Literal["active", "quarantined"] | None = None,
        source: str | None = None,
        split: Literal["train", "holdout"] | None = None,
        label: Literal["pending"] | None = None,
        since: str | None = None,
    ) -> Pages[responses.Example]:
        """Iterate over the active examples, in the order of their positions, or over some of them.

        ``since`` is an RFC 3339 time: only examples with that event time or later.
        """
        chosen = {"state": state, "source": source, "split": split, "label": label, "since": since}
        return Pages(responses.Example, path("models", model, "examples"), without_none(chosen), limit=1000)

    @operation
    def example(self, model: str, id: str) -> Flow[responses.Example]:
        """One active example."""
        return self.ask(responses.Example, "GET", path("models", model, "examples", id))

    @operation
    def remove_examples(
        self,
        model: str,
        ids: Iterable[str] | None = None,
        *,
        subjects: Iterable[str] | None = None,
        source: str | None = None,
        positions: tuple[int, int] | None = None,
    ) -> Flow[responses.Removed]:
        """Remove examples by id, by subject, by source or by position, and adapt the model.

        ``positions`` is the first and last position of a range, as ``add_examples`` returns them.
        """
        named = {"ids": ids, "subjects": subjects}
        body: dict[str, Any] = {name: list_of(values) for name, values in named.items() if values is not None}
        body |= without_none({"source": source, "positions": None if positions is None else list(positions)})
        return self.ask(responses.Removed, "POST", path("models", model, "removals"), body)

    @operation
    def removal(self, model: str, id: str) -> Flow[responses.Removal]:
        """One removal."""
        return self.ask(responses.Removal, "GET", path("models", model, "removals", id))

    def send_batches(
        self, kind: type[Sum], method: str, model: str, bodies: Iterable[Batch], source: str | None = None
    ) -> Flow[Sum]:
        """Send batches and return the sum of the responses. Indices in errors count from the first batch."""
        total, sent = kind(), 0
        for batch in bodies:
            place = path("models", model, "examples")
            call = make_call(
                method, place, params={"source": source}, content=batch.content, content_type=batch.content_type
            )
            try:
                # The response is not kept: it holds a reference to the body of its request.
                total = total + self.read(kind, (yield from self.send(call)))
            except ApiError as error:
                raise error.move_by(sent) from None
            sent += batch.count
        return total

    def send_labels(self, model: str, bodies: Iterable[Batch]) -> Flow[responses.Labelled]:
        """Send batches of labels and return the sum of the responses. Indices in errors count from the first batch."""
        total, sent = responses.Labelled(unknown=[]), 0
        for batch in bodies:
            place = path("models", model, "labels")
            call = make_call("POST", place, content=batch.content, content_type=batch.content_type)
            try:
                stored = self.read(responses.Labelled, (yield from self.send(call)))
            except ApiError as error:
                raise error.move_by(sent) from None
            total = responses.Labelled(
                accepted=total.accepted + stored.accepted,
                unknown=[*total.unknown, *stored.unknown],
                duplicates=total.duplicates + stored.duplicates,
                quarantined=total.quarantined + stored.quarantined,
            )
            sent += batch.count
        return total


def make_bodies(examples: Examples | Path, **columns: str | None) -> Iterator[Batch]:
    """The request bodies, created lazily; `columns` are the names of columns in a frame or file."""
    names = without_none(columns)
    if isinstance(examples, Path):
        return ExampleFile.find(str(examples), names=names).batches()
    if isinstance(examples, str | bytes):
        raise TypeError("Examples cannot be a text. Pass pathlib.Path(...) to send a file.")
    return example_batches.split(dataframes.name_columns(examples, names) if names else examples)
