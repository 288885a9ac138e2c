"""Examples: added, corrected, listed, removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from amend import batches, frames, responses
from amend.batches import Batch, Examples
from amend.errors import ApiError
from amend.files import ExampleFile
from amend.sansio import Caller, Flow, Pages, list_of, listing, make_call, operation, path, without_none

Sum = TypeVar("Sum", responses.Added, responses.Replaced)


class ExampleOperations(Caller):
    """Any number of examples: they go out in as many calls as they need."""

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
    ) -> Flow[responses.Added]:
        """Add examples: a pandas frame or another table, columns (``{"id": ids, "x": array, "y": array}``), an
        iterable of examples as REST has them (``{"id": "a1", "subject": "user-7", "x": [...], "y": 1}``), or the
        ``Path`` of a file of any size: .parquet, .arrow, .csv, .ndjson, .json, the last three also as .gz or .zst.

        Of a frame, or a file with columns, ``id``, ``subject``, ``target`` and ``weight`` name those that are called
        ``id``, ``subject``, ``y`` and ``weight`` in examples, where they have other names.

        They go out in batches, each stored whole or not at all; an iterable is consumed as they do. If one is refused,
        those before it are stored, and adding all of them again does no harm.
        """
        return self.send_batches(responses.Added, "POST", model, make_bodies(examples, id, subject, target, weight))

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
        """Correct an example in force: from one position on, this one is in its place, and the model is adapted.

        Without ``subject``, ``split`` or ``weight`` it keeps its own. The same content again does nothing.
        """
        body = {"x": x, "y": y, **without_none({"subject": subject, "split": split, "weight": weight})}
        return self.ask(responses.Replaced, "PUT", path("models", model, "examples", id), body)

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
    ) -> Flow[responses.Replaced]:
        """Correct examples in force, by their ids, in any form that ``add_examples`` takes.

        They go out in batches; of each all are corrected, or none. If one is refused, those before it are corrected,
        and correcting all of them again does no harm.
        """
        return self.send_batches(responses.Replaced, "PUT", model, make_bodies(examples, id, subject, target, weight))

    @listing
    def examples(self, model: str) -> Pages[responses.Example]:
        """The examples in force, in the order they came."""
        return Pages(responses.Example, path("models", model, "examples"), limit=1000)

    @operation
    def example(self, model: str, id: str) -> Flow[responses.Example]:
        """One example in force."""
        return self.ask(responses.Example, "GET", path("models", model, "examples", id))

    @operation
    def remove_examples(
        self, model: str, ids: Iterable[str] | None = None, *, subjects: Iterable[str] | None = None
    ) -> Flow[responses.Removed]:
        """Remove examples by their ids or the subjects they are about, and have the model forget them."""
        given = {"ids": ids, "subjects": subjects}
        body = {name: list_of(values) for name, values in given.items() if values is not None}
        return self.ask(responses.Removed, "POST", path("models", model, "removals"), body)

    @operation
    def removal(self, model: str, id: str) -> Flow[responses.Removal]:
        """One removal."""
        return self.ask(responses.Removal, "GET", path("models", model, "removals", id))

    def send_batches(self, answer: type[Sum], method: str, model: str, bodies: Iterable[Batch]) -> Flow[Sum]:
        """Send examples of any number; all answers as one. An error tells places among all of them."""
        total, sent = answer(), 0
        for batch in bodies:
            place = path("models", model, "examples")
            call = make_call(method, place, content=batch.content, content_type=batch.content_type)
            try:
                # only what it says is kept: with the answer goes the body that it answers
                total = total + self.read(answer, (yield from self.send(call)))
            except ApiError as error:
                raise error.move_by(sent) from None
            sent += batch.count
        return total


def make_bodies(
    examples: Examples | Path, id: str | None, subject: str | None, target: str | None, weight: str | None
) -> Iterator[Batch]:
    """The bodies of some examples, made as they are asked for; of a frame or a file, with what it calls its columns."""
    names = without_none({"id": id, "subject": subject, "y": target, "weight": weight})
    if isinstance(examples, Path):
        return ExampleFile.find(str(examples), names=names).batches()
    return batches.split(frames.name_columns(examples, names) if names else examples)
