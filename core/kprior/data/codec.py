"""JSON and tensors as bytes, and named groups of tensors. Pickle is never used."""

import json
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

Tensors = dict[str, Tensor]


def join_groups(groups: dict[str, Tensors]) -> Tensors:
    """Join groups of tensors into one; each name is prefixed with that of its group.

    >>> import torch
    >>> sorted(join_groups({"a": {"w": torch.zeros(1)}, "b": {"w": torch.ones(1)}}))
    ['a.w', 'b.w']
    """
    return {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def take_group(tensors: Tensors, group: str) -> Tensors:
    """Extract one group under its original names: the inverse of `join_groups`."""
    return {name.removeprefix(f"{group}."): t for name, t in tensors.items() if name.startswith(f"{group}.")}


def pack(header: dict[str, Any], tensors: Tensors) -> bytes:
    """Encode JSON and tensors as one safetensors file.

    >>> import torch
    >>> header, tensors = unpack(pack({"kind": "sums"}, {"count": torch.tensor(3)}))
    >>> header, int(tensors["count"])
    ({'kind': 'sums'}, 3)
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return bytes(save_tensors(plain, metadata={"amend": json.dumps(header)}))


def unpack(data: bytes) -> tuple[dict[str, Any], Tensors]:
    """Decode the header and the tensors that `pack` encoded."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["amend"])
    return header, load_tensors(data)
