"""What a pass over rows adds up: mergeable statistics.

A sum of floating-point numbers depends on the order in which they are added. So that a pass gives the same bits whoever
reads which rows, the data says what its parts are; each part is added up from zero, and the parts' sums are merged in
their order. Data whose parts can be read elsewhere, at the same time, does so behind `accumulate`: the engine neither
knows nor minds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch

from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.examples import Data, Examples


class Accumulator(ABC):
    """A question, which is the same for every part, and what was added up so far to answer it."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Accumulator]]] = {}
    work: float = 0.0
    """About how many multiplications a row takes."""

    def __init_subclass__(cls) -> None:
        Accumulator.kinds[cls.kind] = cls

    @abstractmethod
    def empty(self) -> Self:
        """The same question, with nothing added."""

    @abstractmethod
    def add(self, chunk: Examples) -> None:
        """Add some rows."""

    @abstractmethod
    def sums(self) -> Tensors:
        """What was added up so far."""

    @abstractmethod
    def merge(self, sums: Tensors) -> None:
        """Add the `sums` of the part that comes next."""

    @abstractmethod
    def question(self) -> tuple[dict[str, Any], Tensors]:
        """All that `from_question` needs, as JSON and tensors."""

    @classmethod
    def from_question(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Accumulator:
        """The inverse of `question`; not for sums that whoever is asked must bring, as they hold a secret."""
        raise TypeError(f"a {cls.kind} must be brought")


A = TypeVar("A", bound=Accumulator)


def add_parts(parts: Sequence[Data], total: A) -> A:
    """Add up parts, here and one after the other."""
    if len(parts) == 1:
        return add_chunks(parts[0], total)
    for part in parts:
        total.merge(add_chunks(part, total.empty()).sums())
    return total


def add_chunks(part: Data, one: A) -> A:
    """Add up the chunks of one part."""
    for chunk in part:
        if len(chunk):
            one.add(chunk)
    return one


class Combined(Accumulator):
    """Several accumulators fed by one pass."""

    kind = "combined"

    def __init__(self, *totals: Accumulator) -> None:
        self.totals = totals
        self.work = sum(total.work for total in totals)

    def empty(self) -> Self:
        return type(self)(*(total.empty() for total in self.totals))

    def add(self, chunk: Examples) -> None:
        for total in self.totals:
            total.add(chunk)

    def sums(self) -> Tensors:
        return join_groups({str(i): total.sums() for i, total in enumerate(self.totals)})

    def merge(self, sums: Tensors) -> None:
        for i, total in enumerate(self.totals):
            total.merge(take_group(sums, str(i)))

    def question(self) -> tuple[dict[str, Any], Tensors]:
        questions = [question_of(total) for total in self.totals]
        headers = [header for header, _ in questions]
        return {"totals": headers}, join_groups({str(i): t for i, (_, t) in enumerate(questions)})


def question_of(total: Accumulator) -> tuple[dict[str, Any], Tensors]:
    """A question for others to answer part by part."""
    header, tensors = total.question()
    return {"kind": total.kind, **header}, tensors


def accumulator_of(
    header: dict[str, Any], tensors: Tensors, device: torch.device, *brought: Accumulator
) -> Accumulator:
    """The inverse of `question_of`, with the accumulators that whoever is asked must bring."""
    kind = header["kind"]
    if kind == Combined.kind:
        each = enumerate(header["totals"])
        return Combined(*(accumulator_of(h, take_group(tensors, str(i)), device, *brought) for i, h in each))
    for one in brought:
        if one.kind == kind:
            return one.empty()
    return Accumulator.kinds[kind].from_question(header, tensors, device)
