"""Accumulators: mergeable sums over rows.

A sum of floating-point numbers depends on the order of its terms. For bit-identical results regardless of which process
reads which rows, the data defines its shards; each shard is summed from zero, and the sums are merged in the order of
the shards. Data whose shards other processes can read does so behind `accumulate`, invisibly to the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.examples import Data, Examples
from core.kprior.model.predictor import Predictor


class Accumulator(ABC):
    """The sums so far, and a config that defines what is summed and is the same for every shard.

    Subclasses have a `kind`, which identifies them to other processes. Call `merge` in the order of the shards.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Accumulator]]] = {}
    work: float = 0.0
    """Approximate number of multiplications per row."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            Accumulator.kinds[cls.kind] = cls

    @abstractmethod
    def empty(self) -> Self:
        """The same config, with nothing added."""

    @abstractmethod
    def add(self, chunk: Examples) -> None:
        """Add rows."""

    @abstractmethod
    def sums(self) -> Tensors:
        """The sums so far."""

    @abstractmethod
    def merge(self, sums: Tensors) -> None:
        """Add the `sums` of the next shard."""

    @abstractmethod
    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        """The config as JSON and tensors, without the sums: the input of `from_config`."""

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Accumulator:
        """The inverse of `to_config`. An accumulator that holds a secret lacks it; each process builds its own."""
        raise TypeError(f"A {cls.kind} cannot be built from a config; the process that reads the shard must build it.")


class ModelAccumulator(Accumulator):
    """An accumulator that uses a model: its config is the predictor, the weights and the arguments named here."""

    options: ClassVar[tuple[str, ...]] = ()
    """Names of arguments that are stored as JSON."""
    tensor_options: ClassVar[tuple[str, ...]] = ()
    """Names of arguments that are tensors or None."""

    def __init__(self, predictor: Predictor, w: Tensor) -> None:
        self.predictor, self.w = predictor, w

    def empty(self) -> Self:
        arguments = {name: getattr(self, name) for name in (*self.options, *self.tensor_options)}
        return type(self)(self.predictor, self.w, **arguments)

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        header, tensors = model_config(self.predictor, self.w)
        tensors |= {name: tensor for name in self.tensor_options if (tensor := getattr(self, name)) is not None}
        return header | {name: getattr(self, name) for name in self.options}, tensors

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        predictor, w = model_of(header, tensors, device)
        arguments = {name: header[name] for name in cls.options}
        arguments |= {name: tensors[name].to(device) for name in cls.tensor_options if name in tensors}
        return cls(predictor, w, **arguments)


def model_config(predictor: Predictor, w: Tensor) -> tuple[dict[str, Any], Tensors]:
    """A predictor and its weights as a config."""
    return {"spec": predictor.spec}, {"w": w} | predictor.constants()


def model_of(header: dict[str, Any], tensors: Tensors, device: torch.device) -> tuple[Predictor, Tensor]:
    """The predictor and the weights of a config."""
    predictor = Predictor(header["spec"], device=device)
    predictor.load_constants(tensors)
    return predictor, tensors["w"].to(device)


A = TypeVar("A", bound=Accumulator)


def add_shards(shards: Sequence[Data], total: A) -> A:
    """Sum each shard from zero, merge them in this order into `total`, and return it."""
    if len(shards) == 1:
        return add_chunks(shards[0], total)
    for shard in shards:
        total.merge(add_chunks(shard, total.empty()).sums())
    return total


def add_chunks(shard: Data, one: A) -> A:
    """Add the chunks of one shard to `one`, which is returned."""
    for chunk in shard:
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

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        configs = [config_of(total) for total in self.totals]
        tensors = join_groups({str(i): tensors for i, (_, tensors) in enumerate(configs)})
        kept, same = leave_out_repeated(tensors)
        return {"totals": [header for header, _ in configs], "same": same}, kept


def leave_out_repeated(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Remove duplicate tensors, so that weights are sent once; also returns what each removed tensor duplicates."""
    kept: Tensors = {}
    same: dict[str, str] = {}
    first: dict[tuple[int, int], str] = {}
    for name, tensor in tensors.items():
        place = first.setdefault((tensor.data_ptr(), tensor.numel()), name) if tensor.numel() else name
        if place == name:
            kept[name] = tensor
        else:
            same[name] = place
    return kept, same


def config_of(total: Accumulator) -> tuple[dict[str, Any], Tensors]:
    """The config of an accumulator and its kind, which other processes need to sum a shard.

    Returns
    -------
    header, tensors
        Input of `pack`.
    """
    header, tensors = total.to_config()
    return {"kind": total.kind, **header}, tensors


def accumulator_of(header: dict[str, Any], tensors: Tensors, device: torch.device, *local: Accumulator) -> Accumulator:
    """The empty accumulator that `config_of` described, with its sums on the given device.

    `local` are accumulators that only this process can build, because they hold a secret; they are matched by kind.
    """
    kind = header["kind"]
    if kind == Combined.kind:
        tensors = tensors | {name: tensors[place] for name, place in header["same"].items()}
        each = enumerate(header["totals"])
        return Combined(*(accumulator_of(h, take_group(tensors, str(i)), device, *local) for i, h in each))
    for one in local:
        if one.kind == kind:
            return one.empty()
    return Accumulator.kinds[kind].from_config(header, tensors, device)
