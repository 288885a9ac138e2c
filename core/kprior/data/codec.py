"""JSON and tensors as bytes, and named groups of tensors. Pickle is never used."""

import json
from typing import Any

import numpy as np
import torch
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


def pack_symmetric(matrix: Tensor) -> Tensors:
    """The nonzero numbers on and above the diagonal of a symmetric matrix, and a bit for each place that has one."""
    used = (matrix != 0).triu().cpu()
    return {"values": matrix.cpu()[used], "used": torch.from_numpy(np.packbits(used.numpy()))}


def unpack_symmetric(packed: Tensors, size: int) -> Tensor:
    """The inverse of `pack_symmetric` for a (size, size) matrix.

    >>> import torch
    >>> matrix = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.0]])
    >>> packed = pack_symmetric(matrix)
    >>> packed["values"].tolist(), torch.equal(unpack_symmetric(packed, 3), matrix)
    ([2.0, 1.0, 3.0], True)
    """
    values, used = packed["values"], packed["used"]
    if used.shape != (-(-size * size // 8),):
        raise ValueError("The places of a symmetric matrix do not fit its size.")
    places = np.unpackbits(used.cpu().numpy(), count=size * size).astype(bool).reshape(size, size)
    mask = torch.from_numpy(places).to(values.device)
    if values.shape != (int(mask.sum()),):
        raise ValueError("The numbers of a symmetric matrix do not fit their places.")
    matrix = torch.zeros(size, size, dtype=values.dtype, device=values.device)
    matrix[mask] = values
    matrix += matrix.triu(1).T
    return matrix
