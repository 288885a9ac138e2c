"""Matrices that map encoded inputs and features of old rows to new ones, and the units of new columns."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from core.kprior.data.examples import chunks_of
from core.kprior.data.schema_conversion import Conversion, recode
from core.kprior.model.architectures import Linear
from core.kprior.model.categories import UNSEEN
from core.kprior.model.input_encoders import Category, TableEncoder
from core.kprior.objective.tasks import AddData, Task
from core.kprior.passes.moments import Moments


def inherit_units(old: object, new: object, conversion: Conversion, count: int, tasks: Sequence[Task]) -> None:
    """Old columns keep their units; those of new columns come from the constants of old rows and the added examples."""
    assert isinstance(old, TableEncoder)
    assert isinstance(new, TableEncoder)
    seen = Moments(new.numbers)
    for chunk in chunks_of([task.data for task in tasks if isinstance(task, AddData)]):
        seen.add(chunk)
    constants = torch.tensor([conversion.columns[j].constant for j in new.numbers], dtype=torch.float64)
    there = ~constants.isnan() * count  # the total weight of old rows is unknown, so each counts once
    seen.merge({"count": there, "mean": constants.nan_to_num(), "square": torch.zeros_like(constants)})
    new.set_units(seen.mean, seen.deviation)
    for place, j in enumerate(new.numbers):
        index = conversion.columns[j].index
        if index is not None:
            before = old.numbers.index(index)
            new.mean[place], new.scale[place] = old.mean[before], old.scale[before]


def map_encoded(old: TableEncoder, new: TableEncoder, conversion: Conversion) -> Tensor:
    """(E_new, E_old + 1) A: new encoded inputs of old rows, from their old encoded inputs and the constant 1."""
    A = torch.zeros(new.shape[0], old.shape[0] + 1, dtype=torch.float64)
    before, after = len(old.numbers), len(new.numbers)
    for i, column in enumerate(new.numbers):
        source = conversion.columns[column]
        if source.index is not None:
            place = old.numbers.index(source.index)
            A[i, place] = A[after + i, before + place] = 1
        elif math.isnan(source.constant):
            A[after + i, -1] = 1
        else:
            A[i, -1] = (source.constant - float(new.mean[i])) / float(new.scale[i])
    theirs, ours = places_of(old), places_of(new)
    for category, start in ours:
        source = conversion.columns[category.index]
        if source.index is None:
            A[start + category.place(source.constant), -1] = 1
            continue
        [(origin, first)] = [(c, p) for c, p in theirs if c.index == source.index]
        codes = [*map(float, range(origin.size)), math.nan, *([UNSEEN] if origin.other != origin.missing else [])]
        changed = codes if source.codes is None else recode(source.codes, np.array(codes)).tolist()
        for code, now in zip(codes, changed, strict=True):
            A[start + category.place(now), first + origin.place(code)] = 1
    return A


def places_of(encoder: TableEncoder) -> list[tuple[Category, int]]:
    """The categories of an encoder, and the position of the first indicator of each."""
    starts = accumulate((c.width for c in encoder.categories), initial=2 * len(encoder.numbers))
    return list(zip(encoder.categories, starts, strict=False))


def map_features(old: Linear, new: Linear, A: Tensor) -> Tensor:
    """(D_new, D_old) M: new features of old rows, from their old features. Products of sums are multiplied out."""
    places = {monomial: i for i, monomial in enumerate(old.monomials)}
    one = A.shape[1] - 1
    rows = [{(() if j == one else (j,)): float(A[i, j]) for j in A[i].nonzero()[:, 0].tolist()} for i in range(len(A))]
    M = torch.zeros(len(new.monomials), len(old.monomials), dtype=torch.float64)
    for i, monomial in enumerate(new.monomials):
        product: dict[tuple[int, ...], float] = {(): 1.0}
        for factor in monomial:
            terms = [(tuple(sorted((*a, *b))), u * v) for a, u in product.items() for b, v in rows[factor].items()]
            product = {}
            for term, value in terms:
                product[term] = product.get(term, 0.0) + value
        for term, value in product.items():
            M[i, places[term]] += value
    return M


def lift(M: Tensor, old: Linear, new: Linear) -> Tensor:
    """(D_new, D_old) from old weights to new ones: features that stay keep their weights, merged ones take the mean.

    A feature that is constant in all old rows, or a constant multiple of another, starts at zero, because that other
    feature has its weight already.
    """
    before, after = (torch.tensor([len(m) for m in body.monomials], device=M.device) for body in (old, new))
    L = torch.where(after[:, None] == before, M, 0.0)
    return L / L.sum(1, keepdim=True).clamp(min=1)


def lift_inputs(A: Tensor) -> Tensor:
    """(E_new, E_old): the old inputs whose weights a new input takes."""
    L = A[:, :-1]
    return L / L.sum(1, keepdim=True).clamp(min=1)
