"""The state of a version: everything that the next adaptation starts from, and its serialization.

A state is serialized to one safetensors file. Its only metadata entry is a JSON header with a format version, so that
equal states give equal bytes and other files are recognised. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from core.kprior.curvature import BACKENDS, Curvature
from core.kprior.curvature.surrogate import Surrogate, move_surrogate
from core.kprior.data.codec import join_groups, pack_symmetric, take_group, unpack_symmetric
from core.kprior.data.examples import Examples
from core.kprior.memory.memory import Memory, remember
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import Regularizer, Spec
from core.kprior.passes.last_layer import LastLayer, last_size
from core.kprior.state.anchor import Anchor

FORMAT = "amend.state"
FORMAT_VERSION, NEWER_VERSION = 2, 3
"""Files with a packed curvature, or with a surrogate, have the second: engines that know only the first cannot read
them."""
CURVATURE = "anchor.curvature.matrix"
PACKED_WEIGHTS = 1_025
"""From this number of weights on, the curvature is packed: most pairs of leaves of a tree ensemble share no example."""


class StateError(ValueError):
    """The bytes are not a state that this version of the engine can read.

    Examples
    --------
    >>> from core.kprior import State
    >>> State.from_bytes(b"no state")
    Traceback (most recent call last):
    core.kprior.state.state.StateError: Not a safetensors file, or damaged: the file is shorter than its header says.
    """


@dataclass(frozen=True)
class State:
    """A model at w*, with sums over its past data and a memory of some examples.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, State, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(-3.0, 4.0)[:, None]
    >>> state = train(spec, [Examples(torch.arange(7), x, (x > 0).float())]).state
    >>> again = State.from_bytes(state.to_bytes())
    >>> again.spec == spec, torch.equal(again.w, state.w), again.to_bytes() == state.to_bytes()
    (True, True, True)
    """

    predictor: Predictor
    regularizer: L2
    regularizer_spec: Regularizer
    w: Tensor
    """(P,) the weights that predictions use."""
    anchor: Anchor
    """Sums over all data in force, at other weights (GLMs) or at `w`."""
    memory: Memory
    """Its soft labels are those of the anchor."""
    count: int
    """Number of examples that the state represents."""
    surrogate: Surrogate | None = None
    last_layer: LastLayer | None = None
    """The curvature of the last layer of a network, at its weights."""

    @property
    def spec(self) -> Spec:
        """The model's spec, regularizer included."""
        return {**self.predictor.spec, "regularizer": self.regularizer_spec}

    @property
    def curvature(self) -> Curvature | None:
        """G at the anchor; None if the model carries no curvature."""
        return self.anchor.curvature

    @property
    def gradient(self) -> Tensor:
        """(P,) g*: gradient of the whole training objective at the anchor."""
        return self.anchor.gradient + self.regularizer.gradient(self.anchor.w)

    def header(self) -> dict[str, Any]:
        """Everything that is not a tensor, as JSON."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "spec": self.spec,
            "count": self.count,
            "generation": self.memory.generation,
            "curvature": None if self.curvature is None else self.curvature.kind,
        }

    def to_bytes(self) -> bytes:
        """Serialize the state to one safetensors file; equal states give equal bytes."""
        tensors = {
            "w": self.w,
            "delta": self.regularizer.delta,
            "memory.key": self.memory.key,
            "memory.weight": self.memory.weight,
            "memory.soft": self.memory.soft,
        }
        tensors |= self.predictor.constants()
        if self.regularizer.linear is not None:
            tensors["perturbation"] = self.regularizer.linear
        if self.regularizer.toward is not None:
            tensors["toward"] = self.regularizer.toward
        header, anchored = self.header(), self.anchor.tensors()
        if torch.equal(self.anchor.w, self.w):
            del anchored["w"]
        tensors |= join_groups({"anchor": anchored})
        if CURVATURE in tensors and len(self.w) >= PACKED_WEIGHTS:
            tensors |= join_groups({CURVATURE: pack_symmetric(tensors.pop(CURVATURE))})
            header["version"] = NEWER_VERSION
        if self.surrogate is not None:
            header["version"] = NEWER_VERSION
            tensors |= {f"surrogate.{k}": v for k, v in vars(self.surrogate).items()}
        if self.last_layer is not None:
            tensors |= {f"last_layer.{k}": v for k, v in vars(self.last_layer).items()}
        tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        # Only one metadata entry, because safetensors does not keep the order of several.
        envelope = {"header": header, "sha256": hash_contents(header, tensors)}
        return bytes(save_tensors(tensors, metadata={"amend": json.dumps(envelope, sort_keys=True)}))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> State:
        """The inverse of `to_bytes`. Raises StateError if the bytes are not a valid state."""
        envelope = read_envelope(data)
        header = envelope["header"]
        try:
            tensors = load_tensors(data)
        except Exception as error:  # safetensors raises errors of its own, and KeyError for unknown dtypes
            raise StateError(f"The state file is damaged: {error}") from error
        if envelope.get("sha256") != hash_contents(header, tensors):
            raise StateError("The state file is damaged: its contents do not match its digest.")
        try:
            return cls._assemble(header, {k: v.to(device) for k, v in tensors.items()}, device)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise StateError(f"The state file is incomplete or inconsistent: {error}") from error

    @classmethod
    def _assemble(cls, header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device | str) -> State:
        spec = header["spec"]
        predictor = Predictor(spec, device=device)
        predictor.load_constants(tensors)
        tensors.setdefault("anchor.w", tensors["w"])
        if packed := take_group(tensors, CURVATURE):
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{CURVATURE}.")}
            tensors[CURVATURE] = unpack_symmetric(packed, predictor.size)
        optional = [name for name in ("perturbation", "toward") if name in tensors]
        for name in ("w", "anchor.w", "anchor.gradient", "delta", *optional):
            if tensors[name].shape != (predictor.size,):
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not ({predictor.size},)")
        backend = None if header["curvature"] is None else BACKENDS[header["curvature"]]
        anchor = Anchor.from_tensors(take_group(tensors, "anchor"), backend, predictor)
        surrogate = None
        if "surrogate.gram" in tensors:
            surrogate = Surrogate(tensors["surrogate.gram"], tensors["surrogate.cross"])
        last_layer = None
        if "last_layer.value" in tensors:
            last_layer = LastLayer(**take_group(tensors, "last_layer"))
            if last_layer.curvature.shape != (last_size(predictor),) * 2:
                raise ValueError("the curvature of the last layer does not fit it")
        memory = Memory(
            tensors["memory.key"].cpu(), tensors["memory.weight"], tensors["memory.soft"], int(header["generation"])
        )
        m = len(memory.key)
        if memory.weight.shape != (m,) or memory.soft.shape != (m, predictor.family.outputs):
            raise ValueError("memory keys, weights and soft labels do not fit each other")
        return cls(
            predictor,
            L2(tensors["delta"], tensors.get("perturbation"), tensors.get("toward")),
            spec["regularizer"],
            tensors["w"],
            anchor,
            memory,
            int(header["count"]),
            surrogate,
            last_layer,
        )


def align(state: State, memory: Examples) -> Examples:
    """The rows of the memory in the state's order, from rows in any order.

    Raises ValueError if rows are missing, or do not fit the soft labels in the state.
    """
    key = memory.key.cpu()
    order = torch.argsort(key)
    found = torch.searchsorted(key[order], state.memory.key)
    found = found.clamp(max=max(0, len(key) - 1))
    if len(key) < len(state.memory) or not bool((key[order][found] == state.memory.key).all()):
        raise ValueError("Rows of the memory are missing.")
    rows = memory.take(order[found]) if len(key) else memory
    if len(rows):
        soft = state.predictor.family.mean(state.predictor.outputs(state.anchor.w, rows.x))
        if not torch.allclose(soft, state.memory.soft.to(soft), rtol=1e-3, atol=1e-4):
            raise ValueError("The rows of the memory are not those that the state remembers: their soft labels differ.")
    return rows


def count_after(state: State, removed: Tensor, added: Tensor) -> int:
    """The number of examples after a change, given the keys of removed and added examples.

    Raises
    ------
    ValueError
        If none is left, or if an example is removed twice, added twice, both added and removed, or present already.
    """
    if len(removed.unique()) != len(removed):
        raise ValueError("The same example is removed twice.")
    if bool(torch.isin(added, removed).any()):
        raise ValueError("An example is both added and removed; leave out both tasks.")
    if bool(torch.isin(added, state.memory.key).any()) or len(added.unique()) != len(added):
        raise ValueError("An added example is present already.")
    count = state.count - len(removed) + len(added)
    if count <= 0:
        raise ValueError("No examples are left to train a model on.")
    return count


def move_anchor(state: State, anchor: Anchor, rows: Examples) -> State:
    """The state with another anchor; soft labels and surrogate are moved to its weights by means of the memory."""
    old = state.memory
    memory = remember(state.predictor, anchor.w, rows, old.weight, old.generation)
    surrogate = move_surrogate(state.surrogate, state.predictor, state.anchor.w, anchor.w, rows, old.weight)
    return replace(state, anchor=anchor, memory=memory, surrogate=surrogate)


def hash_contents(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A SHA-256 of the contents of a state, independent of their order in the file."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def read_envelope(data: bytes) -> dict[str, Any]:
    """The header and the digest of a file."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > len(data) - 8:
            raise ValueError("the file is shorter than its header says.")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__")
    except (ValueError, AttributeError, RecursionError) as error:
        raise StateError(f"Not a safetensors file, or damaged: {error}") from error
    if not isinstance(metadata, dict) or "amend" not in metadata:
        raise StateError("A safetensors file, but not a state of this engine.")
    try:
        envelope: dict[str, Any] = json.loads(metadata["amend"])
        format_, version = envelope["header"]["format"], envelope["header"]["version"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StateError("The header of the state is damaged.") from error
    if format_ != FORMAT or version not in (FORMAT_VERSION, NEWER_VERSION):
        raise StateError(
            f"The format of the state is {format_!r}, version {version!r}, but this engine reads {FORMAT!r}, versions "
            f"{FORMAT_VERSION} and {NEWER_VERSION}. Retrain the model."
        )
    return envelope
