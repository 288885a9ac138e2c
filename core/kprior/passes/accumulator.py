"""What a pass over rows adds up: sums that can be merged.

A sum of floating-point numbers depends on the order in which they are added. So that a pass gives the same bits whoever
reads which rows, the data says what its shards are; each shard is added up from zero, and their sums are merged in
their order. Data whose shards can be read elsewhere, at the same time, does so behind `accumulate`: the engine neither
knows nor minds.
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
    """What is to be added up (its config), which is the same for every shard, and the sums so far.

    Subclasses have a `kind`, by which others know what to add up. `merge` takes the sums of shards in their order.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Accumulator]]] = {}
    work: float = 0.0
    """About how many multiplications a row takes."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            Accumulator.kinds[cls.kind] = cls

    @abstractmethod
    def empty(self) -> Self:
        """The same config, with nothing added."""

    @abstractmethod
    def add(self, chunk: Examples) -> None:
        """Add some rows."""

    @abstractmethod
    def sums(self) -> Tensors:
        """What was added up so far."""

    @abstractmethod
    def merge(self, sums: Tensors) -> None:
        """Add the `sums` of the shard that comes next."""

    @abstractmethod
    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        """All that `from_config` needs, as JSON and tensors: what is to be added up, and none of the sums."""

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Accumulator:
        """The inverse of `to_config`; not for one that holds a secret, which each reader must have itself."""
        raise TypeError(f"a {cls.kind} cannot be made from a config: its reader must have it")


class ModelAccumulator(Accumulator):
    """One that asks a model: its config is the predictor, the weights, and the arguments that are named here."""

    options: ClassVar[tuple[str, ...]] = ()
    """Arguments that JSON knows."""
    tensor_options: ClassVar[tuple[str, ...]] = ()
    """Arguments that are tensors or None."""

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
    return {"spec": predictor.spec}, {"w": w} | join_groups({"encoder": predictor.encoder.state_dict()})


def model_of(header: dict[str, Any], tensors: Tensors, device: torch.device) -> tuple[Predictor, Tensor]:
    """The predictor and the weights of a config."""
    predictor = Predictor(header["spec"], device=device)
    predictor.encoder.load_state_dict({k: v.to(device) for k, v in take_group(tensors, "encoder").items()})
    return predictor, tensors["w"].to(device)


A = TypeVar("A", bound=Accumulator)


def add_shards(shards: Sequence[Data], total: A) -> A:
    """Add up shards, here and one after the other.

    Parameters
    ----------
    shards
        Each is added up from zero, and merged in this order.
    total
        What they are added to; it is returned, too.
    """
    if len(shards) == 1:
        return add_chunks(shards[0], total)
    for shard in shards:
        total.merge(add_chunks(shard, total.empty()).sums())
    return total


def add_chunks(shard: Data, one: A) -> A:
    """Add up the chunks of one shard into `one`, which is returned."""
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
    """The tensors without those that are another one of them, and which: the weights of a model are sent once."""
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
    """The config of an accumulator with its kind: what others need to add up a shard.

    Returns
    -------
    header, tensors
        For `pack`.
    """
    header, tensors = total.to_config()
    return {"kind": total.kind, **header}, tensors


def accumulator_of(header: dict[str, Any], tensors: Tensors, device: torch.device, *local: Accumulator) -> Accumulator:
    """The inverse of `config_of`.

    Parameters
    ----------
    header, tensors
        What `config_of` gave.
    device
        Where sums are added up.
    *local
        Accumulators that only their reader can make, as they hold a secret; found by their kind.

    Returns
    -------
    Accumulator
        With nothing added.
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
