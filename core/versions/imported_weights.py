"""Imported weights: stored with the model until a worker makes the first version from them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as load_tensors
from sqlalchemy import delete
from sqlalchemy.orm import Session
from torch import Tensor

from core.errors import Invalid
from core.kprior import Predictor
from core.kprior.data.codec import join_groups, pack, take_group, unpack
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.spec import Spec
from core.kprior.model.tree_splits import NODE_TENSORS, LeafEncoder, check_splits
from core.models.validation import build_shapes
from core.tables.models import Model
from core.tables.versions import ImportedWeights

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Imported(NamedTuple):
    """Imported weights as tensors."""

    w: Tensor | None
    """None: the head of imported trees is trained."""
    units: tuple[Tensor, Tensor] | None
    """Mean and scale of a table's number columns; None: measured on the examples."""
    splits: dict[str, Tensor] | None = None
    """The splits of trees."""
    buffers: dict[str, Tensor] | None = None
    """Buffers and frozen parameters of a network's body; None: as the architecture builds them."""


def check(
    spec: Spec,
    weights: Sequence[float] | None,
    units: tuple[Sequence[float], Sequence[float]] | None,
    splits: Mapping[str, Any] | None = None,
) -> Imported:
    """Convert imported weights to tensors; raises Invalid if they do not fit the spec."""
    predictor = build_shapes(spec)
    checked = None if splits is None else check_splits_fit(predictor, splits)
    if isinstance(predictor.encoder, LeafEncoder) and checked is None:
        raise Invalid.at(("splits",), "splits_invalid", "trees need the splits that their weights belong to")
    if weights is None:
        if checked is None:
            raise Invalid.at(("weights",), "weights_invalid", "only the weights of trees may be left out")
        return Imported(None, None, checked)
    if len(weights) != predictor.size:
        message = f"{len(weights)} weights were given; the model has {predictor.size}"
        raise Invalid.at(("weights",), "weights_invalid", message)
    w = torch.tensor(weights, dtype=torch.float64)
    if units is None:
        return Imported(w, None, checked)
    if not isinstance(predictor.encoder, TableEncoder):
        raise Invalid.at(("units",), "units_invalid", "only the number columns of a table have units")
    wanted = len(predictor.encoder.numbers)
    for name, values in zip(("mean", "scale"), units, strict=True):
        if len(values) != wanted:
            message = f"{len(values)} numbers were given; the table has {wanted} number columns"
            raise Invalid.at(("units", name), "units_invalid", message)
    mean, scale = (torch.tensor(values, dtype=torch.float64) for values in units)
    return Imported(w, (mean, scale))


def check_splits_fit(predictor: Predictor, splits: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert imported splits to tensors; raises Invalid if they do not fit the model."""
    encoder = predictor.encoder
    if not isinstance(encoder, LeafEncoder):
        raise Invalid.at(("splits",), "splits_invalid", "only the architecture `trees` has splits")
    try:
        kinds = {**NODE_TENSORS, "words": torch.int64}
        found = {name: torch.tensor(splits[name], dtype=kind) for name, kind in kinds.items()}
        check_splits(found, encoder.shape[0], encoder.leaves, encoder.raw_shape[0], encoder.categories)
    except (ValueError, RuntimeError, OverflowError) as error:  # also lists of different lengths, and large numbers
        raise Invalid.at(("splits",), "splits_invalid", str(error)) from error
    return found


def read_file(spec: Spec, content: bytes) -> Imported:
    """Weights and buffers from a safetensors file: `w`, and `body.NAME` for each buffer. Raises Invalid."""
    try:
        tensors = load_tensors(content)
    except Exception as error:  # safetensors raises errors of its own
        raise Invalid.at(("tensors",), "weights_invalid", f"is not a safetensors file: {error}") from error
    w = tensors.pop("w", None)
    if w is None or w.dim() != 1 or w.dtype not in FLOATS or not bool(w.isfinite().all()):
        message = "must contain the finite weights `w` as one vector of 16-, 32- or 64-bit floats"
        raise Invalid.at(("tensors",), "weights_invalid", message)
    predictor = build_shapes(spec)
    if isinstance(predictor.encoder, LeafEncoder):
        raise Invalid.at(("tensors",), "splits_invalid", "trees need `weights` and the splits that they belong to")
    if len(w) != predictor.size:
        message = f"{len(w)} weights were given; the model has {predictor.size}"
        raise Invalid.at(("tensors",), "weights_invalid", message)
    if stray := [name for name in tensors if not name.startswith("body.")]:
        raise Invalid.at(("tensors",), "weights_invalid", f"contains {stray[0]!r}; only `w` and `body.*` are read")
    buffers = take_group(tensors, "body")
    wanted = {n.removeprefix("body."): t for n, t in predictor.constants().items() if n.startswith("body.")}
    for name in wanted.keys() ^ buffers.keys():
        problem = "lacks" if name in wanted else "contains the unknown"
        raise Invalid.at(("tensors",), "weights_invalid", f"{problem} buffer {name!r}")
    for name, tensor in wanted.items():
        if buffers[name].dtype not in (FLOATS if tensor.is_floating_point() else (*INTEGERS, tensor.dtype)):
            kind = "16-, 32- or 64-bit floats" if tensor.is_floating_point() else "integers"
            raise Invalid.at(("tensors",), "weights_invalid", f"the buffer {name!r} must contain {kind}")
        if buffers[name].shape != tensor.shape or not bool(buffers[name].isfinite().all()):
            message = f"the buffer {name!r} must have the shape {list(tensor.shape)} and finite numbers"
            raise Invalid.at(("tensors",), "weights_invalid", message)
    return Imported(w.double(), None, buffers=buffers or None)


def store(session: Session, model: Model, imported: Imported) -> None:
    """Store weights for the next job, replacing earlier ones."""
    tensors = {} if imported.w is None else {"w": imported.w}
    tensors |= join_groups({"splits": imported.splits or {}})
    if imported.units is not None:
        tensors["mean"], tensors["scale"] = imported.units
    if imported.buffers:
        tensors |= join_groups({"body": imported.buffers})
    session.merge(ImportedWeights(model_id=model.id, content=pack({}, tensors)))


def find(session: Session, model_id: int) -> Imported | None:
    """The weights that the next job imports; None if there are none."""
    row = session.get(ImportedWeights, model_id)
    if row is None:
        return None
    _, tensors = unpack(row.content)
    units = (tensors["mean"], tensors["scale"]) if "mean" in tensors else None
    splits, buffers = take_group(tensors, "splits") or None, take_group(tensors, "body") or None
    return Imported(tensors.get("w"), units, splits, buffers)


def drop(session: Session, model_id: int) -> None:
    """Delete the stored weights."""
    session.execute(delete(ImportedWeights).where(ImportedWeights.model_id == model_id))
