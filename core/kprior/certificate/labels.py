"""Bounds for each label of a target: the labels share rows and features, but each has its own weights and objective.

The Hessian has one block for each label, so that the bounds of `anchored_bound.py` and `wide_bound.py` also hold for
one label, with its part of the sums. What is known only for all labels together, such as rounding errors and
leverages, is used for each of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from core.kprior.certificate.anchored_model import AnchoredModel, PastSums
from core.kprior.certificate.certificate import LabelBound
from core.kprior.certificate.exact_rows import ExactRows
from core.kprior.certificate.wide_bound import distance_bound
from core.kprior.curvature import Full
from core.kprior.model.families import Labels
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import PredictorSpec, values_of
from core.kprior.passes.gradient import Gradient
from core.kprior.state.anchor import Anchor, hessian_of
from core.kprior.state.informed_space import InformedSpace
from core.kprior.state.measurement import smallest_eigenvalue

LabelBounds = dict[str, LabelBound] | None


def anchored_label_bounds(anchored: AnchoredModel, w: Tensor, whole: float) -> LabelBounds:
    """A bound for each label of a dense model, no larger than `whole`, the bound of all; None without labels."""
    predictor = anchored.predictor
    if not isinstance(predictor.family, Labels):
        return None
    single, parts = one_label(predictor), split(w, predictor)
    distances = []
    for k in range(len(parts)):
        past, anchor = anchored.past, anchor_part(anchored.anchor, predictor, k)
        regularizer = regularizer_part(anchored.regularizer, predictor, k)
        if anchor.exact:
            space = InformedSpace.of(anchor, regularizer.delta, single.family)
            least = smallest_eigenvalue(hessian_of(single, regularizer, anchor), space)
            anchor = replace(anchor, smallest=max(anchor.smallest, least))
        one = replace(
            anchored,
            predictor=single,
            regularizer=regularizer,
            anchor=anchor,
            factor=block(anchored.factor, predictor, k),
            exact=tuple(rows_part(rows, k) for rows in anchored.exact),
            past=past
            and PastSums(anchor_part(past.anchor, predictor, k), regularizer_part(past.regularizer, predictor, k)),
        )
        distances.append(min(whole, one.bound(parts[k]).distance))
    return named(predictor, w, distances)


def wide_label_bounds(regularizer: L2, seen: Gradient, whole: float) -> LabelBounds:
    """The same for a wide model, from the sums of a careful pass."""
    predictor = seen.predictor
    if not isinstance(predictor.family, Labels):
        return None
    single, distances = one_label(predictor), []
    for k, w in enumerate(split(seen.w, predictor)):
        one = Gradient(single, w, seen.careful, seen.centre)
        one.count, one.value, one.rounding, one.reach, one.blur = 0, seen.value, seen.rounding, seen.reach, seen.blur
        one.gradient, one.scatter = seen.gradient[k : k + 1], seen.scatter[k : k + 1]
        one.bias, one.coupled = seen.bias[k : k + 1, k : k + 1], seen.coupled[k : k + 1]
        distances.append(min(whole, distance_bound(regularizer_part(regularizer, predictor, k), one)))
    return named(predictor, seen.w, distances)


def one_label(predictor: Predictor) -> Predictor:
    """A binary model with the same features."""
    spec: PredictorSpec = {**predictor.spec, "target": {"kind": "binary"}}
    single = Predictor(spec, device=predictor.device)
    single.inherit(predictor)
    return single


def split(w: Tensor, predictor: Predictor) -> Tensor:
    """(K, D) the weights of each label."""
    return w.view(predictor.family.outputs, -1)


def block(matrix: Tensor, predictor: Predictor, k: int) -> Tensor:
    """(D, D) the block of a label in a matrix (P, P)."""
    size = predictor.size // predictor.family.outputs
    return matrix[k * size : (k + 1) * size, k * size : (k + 1) * size].contiguous()


def anchor_part(anchor: Anchor, predictor: Predictor, k: int) -> Anchor:
    assert isinstance(anchor.curvature, Full)
    return replace(
        anchor,
        w=split(anchor.w, predictor)[k],
        gradient=split(anchor.gradient, predictor)[k],
        curvature=Full(block(anchor.curvature.matrix, predictor, k)),
    )


def regularizer_part(regularizer: L2, predictor: Predictor, k: int) -> L2:
    linear, toward = (
        None if vector is None else split(vector, predictor)[k] for vector in (regularizer.linear, regularizer.toward)
    )
    return L2(split(regularizer.delta, predictor)[k], linear, toward)


def rows_part(rows: ExactRows, k: int) -> ExactRows:
    return replace(rows, f0=rows.f0[:, k : k + 1], y=rows.y[:, k : k + 1])


def named(predictor: Predictor, w: Tensor, distances: list[float]) -> dict[str, LabelBound]:
    """The bounds by the texts of the labels."""
    found = {}
    for value, distance, part in zip(values_of(predictor.spec["target"]), distances, split(w, predictor), strict=True):
        size = float(part.norm())
        relative = distance / size if size > 0 else (0.0 if distance == 0 else math.inf)
        found[str(value)] = LabelBound(distance, relative)
    return found
