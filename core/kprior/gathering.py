"""Sums over data, part by part: what every pass is made of.

A sum of floating-point numbers depends on the order in which they are added. So that a pass gives the same bits whoever
reads which rows, the data says what its parts are; each part is added up from zero, and the parts' sums are merged in
their order. Data whose parts can be read elsewhere, at the same time, does so behind `gather`: the engine neither knows
nor minds. Certificates, summaries, memory selection, encoders and the full-batch solvers call it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from core.kprior.examples import Data, Examples, rereadable

Tensors = dict[str, Tensor]


class Sum(ABC):
    """A question, which is the same for every part, and what was added up so far to answer it."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Sum]]] = {}
    work: float = 0.0
    """About how many multiplications a row takes."""

    def __init_subclass__(cls) -> None:
        Sum.kinds[cls.kind] = cls

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
        """All that `asked` needs, as JSON and tensors."""

    @classmethod
    def asked(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Sum:
        """The inverse of `question`; not for sums that whoever is asked must bring, as they hold a secret."""
        raise TypeError(f"a {cls.kind} must be brought")


S = TypeVar("S", bound=Sum)


class Divided(ABC):
    """Data in parts."""

    @abstractmethod
    def parts(self) -> Sequence[Data]:
        """The data in order. Whoever asks gets the same parts."""

    @abstractmethod
    def rows(self, key: Tensor) -> Examples:
        """The examples with these keys, in the order of their keys."""

    def shares(self, total: Sum) -> bool:
        """Whether others would help to add this up."""
        return False

    def gather(self, total: S) -> S:
        """Add up all parts."""
        return add_up(self.parts(), total)

    def __iter__(self) -> Iterator[Examples]:
        for part in self.parts():
            yield from part


def parts_of(data: Data) -> Sequence[Data]:
    """The parts of data; data that knows none is one."""
    return data.parts() if isinstance(data, Divided) else [rereadable(data)]


def gather(data: Data, total: S) -> S:
    """Add up all of the data, by one pass."""
    return data.gather(total) if isinstance(data, Divided) else add_up(parts_of(data), total)


def add_up(parts: Sequence[Data], total: S) -> S:
    """Add up parts, here and one after the other."""
    if len(parts) == 1:
        return added(parts[0], total)
    for part in parts:
        total.merge(added(part, total.empty()).sums())
    return total


def added(part: Data, one: S) -> S:
    """Add up one part."""
    for chunk in part:
        if len(chunk):
            one.add(chunk)
    return one


class Together(Sum):
    """Several sums by one pass."""

    kind = "together"

    def __init__(self, *totals: Sum) -> None:
        self.totals = totals
        self.work = sum(total.work for total in totals)

    def empty(self) -> Self:
        return type(self)(*(total.empty() for total in self.totals))

    def add(self, chunk: Examples) -> None:
        for total in self.totals:
            total.add(chunk)

    def sums(self) -> Tensors:
        return prefixed({str(i): total.sums() for i, total in enumerate(self.totals)})

    def merge(self, sums: Tensors) -> None:
        for i, total in enumerate(self.totals):
            total.merge(below(sums, str(i)))

    def question(self) -> tuple[dict[str, Any], Tensors]:
        asked = [question_of(total) for total in self.totals]
        return {"totals": [header for header, _ in asked]}, prefixed({str(i): t for i, (_, t) in enumerate(asked)})


def question_of(total: Sum) -> tuple[dict[str, Any], Tensors]:
    """A question for others to answer part by part."""
    header, tensors = total.question()
    return {"kind": total.kind, **header}, tensors


def total_of(header: dict[str, Any], tensors: Tensors, device: torch.device, *brought: Sum) -> Sum:
    """The inverse of `question_of`, with the sums that whoever is asked must bring."""
    kind = header["kind"]
    if kind == Together.kind:
        asked = enumerate(header["totals"])
        return Together(*(total_of(each, below(tensors, str(i)), device, *brought) for i, each in asked))
    for one in brought:
        if one.kind == kind:
            return one.empty()
    return Sum.kinds[kind].asked(header, tensors, device)


def prefixed(groups: dict[str, Tensors]) -> Tensors:
    """Groups of tensors as one, each name after its group's."""
    return {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def below(tensors: Tensors, group: str) -> Tensors:
    """One group of them."""
    return {name.removeprefix(f"{group}."): t for name, t in tensors.items() if name.startswith(f"{group}.")}


def packed(header: dict[str, Any], tensors: Tensors) -> bytes:
    """JSON and tensors as one safetensors file. Nothing is pickled."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return bytes(save_tensors(plain, metadata={"amend": json.dumps(header)}))


def unpacked(data: bytes) -> tuple[dict[str, Any], Tensors]:
    """The inverse of `packed`."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["amend"])
    return header, load_tensors(data)
