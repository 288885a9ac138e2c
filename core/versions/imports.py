"""Imported weights: stored with the model until a worker makes the first version from them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from sqlalchemy import delete
from sqlalchemy.orm import Session
from torch import Tensor

from core.errors import Invalid
from core.kprior.data.codec import pack, unpack
from core.kprior.model.encoders import TableEncoder
from core.kprior.model.spec import Spec
from core.models.validation import build_shapes
from core.tables.models import Model
from core.tables.versions import ImportedWeights


class Imported(NamedTuple):
    """Imported weights as tensors."""

    w: Tensor
    units: tuple[Tensor, Tensor] | None
    """Mean and scale of a table's number columns; None: measured on the examples."""


def check(spec: Spec, weights: Sequence[float], units: tuple[Sequence[float], Sequence[float]] | None) -> Imported:
    """Convert imported weights to tensors; raises Invalid if they do not fit the spec."""
    predictor = build_shapes(spec)
    if len(weights) != predictor.size:
        message = f"{len(weights)} weights were given; the model has {predictor.size}"
        raise Invalid.at(("weights",), "weights_invalid", message)
    w = torch.tensor(weights, dtype=torch.float64)
    if units is None:
        return Imported(w, None)
    if not isinstance(predictor.encoder, TableEncoder):
        raise Invalid.at(("units",), "units_invalid", "only the number columns of a table have units")
    wanted = len(predictor.encoder.numbers)
    for name, values in zip(("mean", "scale"), units, strict=True):
        if len(values) != wanted:
            message = f"{len(values)} numbers were given; the table has {wanted} number columns"
            raise Invalid.at(("units", name), "units_invalid", message)
    mean, scale = (torch.tensor(values, dtype=torch.float64) for values in units)
    return Imported(w, (mean, scale))


def store(session: Session, model: Model, imported: Imported) -> None:
    """Store weights for the next job, replacing earlier ones."""
    tensors = {"w": imported.w}
    if imported.units is not None:
        tensors["mean"], tensors["scale"] = imported.units
    session.merge(ImportedWeights(model_id=model.id, content=pack({}, tensors)))


def find(session: Session, model_id: int) -> Imported | None:
    """The weights that the next job imports; None if there are none."""
    row = session.get(ImportedWeights, model_id)
    if row is None:
        return None
    _, tensors = unpack(row.content)
    return Imported(tensors["w"], (tensors["mean"], tensors["scale"]) if "mean" in tensors else None)


def drop(session: Session, model_id: int) -> None:
    """Delete the stored weights."""
    session.execute(delete(ImportedWeights).where(ImportedWeights.model_id == model_id))
