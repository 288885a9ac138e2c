"""A state whose input or target is another: the same model, as far as it can be, in terms of new columns or classes.

What an old row is in the new features is a linear map of what it was, phi_new = M phi: a column that came is a constant
in all of them, one that is renamed stays, indicators of merged values are added. So sums at the anchor follow, with no
row read: gradient M g, curvature M G M'. If the weights can follow, too, so that every old row has the outputs it had
(M' w_new = w: nothing was dropped or merged that had a weight), or if curvature does not depend on outputs, then these
sums are exact, and so is all that follows from them. Else they are estimates around the memory, whose rows enter
exactly: with all rows in memory nothing is lost, with fewer a pass measures them anew. Classes that come, go or merge
change every output; their sums are such estimates always.

Called before anything else by `adapt`, and by the worker, which has more than one use for the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from core.kprior.adaptation.dense import exact_rows, hessian_of, recentre
from core.kprior.anchor import Anchor
from core.kprior.curvature import Full, cholesky, glm_hessian, is_wide
from core.kprior.curvature.informed_space import InformedSpace
from core.kprior.data.conversion import Conversion, recode
from core.kprior.data.examples import Examples, chunks_of
from core.kprior.memory.memory import remember
from core.kprior.model.architectures import Linear
from core.kprior.model.categories import UNSEEN
from core.kprior.model.encoders import Category, TableEncoder
from core.kprior.model.families import Gaussian
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import PredictorSpec, values_of
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.tasks import AddData, ChangeInput, ChangeRegularizer, ChangeTarget, Task
from core.kprior.objective.transfer import layers_of
from core.kprior.passes.measurement import smallest_eigenvalue
from core.kprior.passes.moments import Moments
from core.kprior.passes.rounding_error import round_up
from core.kprior.state import State, align


class Untransferable(ValueError):
    """A model that cannot follow a change of its input or target: it has to be trained anew."""


def change_schema(state: State, memory: Examples, tasks: Sequence[Task]) -> tuple[State, Examples]:
    """The state in terms of the new input and target, and the rows of its memory as they are then.

    Parameters
    ----------
    state
        The model as it is.
    memory
        Its memory's rows, as they were.
    tasks
        All of a change; examples that are added give new columns their units.

    Raises
    ------
    Untransferable
        If the model has to be trained anew.
    """
    regularizers = [task for task in tasks if isinstance(task, ChangeRegularizer)]
    for task in tasks:
        if isinstance(task, (ChangeInput, ChangeTarget)):
            if state.regularizer.linear is not None:
                raise Untransferable("certified removal needs a new perturbation for other weights")
            new = new_predictor(state, task, tasks)
            spec = regularizers[-1].regularizer if regularizers else state.regularizer_spec
            try:
                regularizer = regularizer_of(spec, new)
            except ValueError as error:
                raise Untransferable("the regularizer has a delta for each weight, and weights are others") from error
            state = replace(state, regularizer_spec=spec)
            if isinstance(task, ChangeInput):
                state, memory = change_input(state, memory, task, new, regularizer)
            else:
                state, memory = change_target(state, memory, task, new, regularizer)
    return state, memory


def new_predictor(state: State, task: ChangeInput | ChangeTarget, tasks: Sequence[Task]) -> Predictor:
    """The same architecture between another input and target. Columns that stay keep their units."""
    old = state.predictor
    if "features" in old.spec["architecture"]:
        raise Untransferable("its architecture names inputs by their numbers, which are others now")
    part: PredictorSpec = {**old.spec}
    if isinstance(task, ChangeInput):
        part["input"] = task.input
    else:
        part["target"] = task.target
    try:
        new = Predictor(part, device=old.device)
    except (ValueError, RuntimeError) as error:
        raise Untransferable(str(error)) from error
    if is_wide(new) or is_wide(old):
        raise Untransferable("a model of so many weights carries too little of its past to follow")
    if isinstance(task, ChangeTarget):
        new.encoder.load_state_dict(old.encoder.state_dict())
    else:
        take_units(old.encoder, new.encoder, task.conversion, state.count, tasks)
    return new


def take_units(old: object, new: object, conversion: Conversion, count: int, tasks: Sequence[Task]) -> None:
    """Old columns keep their units; new ones take them from what old rows have there and the examples that come."""
    assert isinstance(old, TableEncoder)
    assert isinstance(new, TableEncoder)
    seen = Moments(new.numbers)
    for chunk in chunks_of([task.data for task in tasks if isinstance(task, AddData)]):
        seen.add(chunk)
    constants = torch.tensor([conversion.columns[j].constant for j in new.numbers], dtype=torch.float64)
    there = ~constants.isnan() * count
    seen.merge({"count": there, "mean": constants.nan_to_num(), "square": torch.zeros_like(constants)})
    new.set_units(seen.mean, (seen.square / seen.count.clamp(min=1)).sqrt())
    for place, j in enumerate(new.numbers):
        index = conversion.columns[j].index
        if index is not None:
            before = old.numbers.index(index)
            new.mean[place], new.scale[place] = old.mean[before], old.scale[before]


def map_encoded(old: TableEncoder, new: TableEncoder, conversion: Conversion) -> Tensor:
    """(E_new, E_old + 1) A: encoded inputs of old rows in the new encoder, from the old ones' and the constant 1."""
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
    """The categories of an encoder, and where the indicators of each begin."""
    starts = accumulate((c.width for c in encoder.categories), initial=2 * len(encoder.numbers))
    return list(zip(encoder.categories, starts, strict=False))


def map_features(old: Linear, new: Linear, A: Tensor) -> Tensor:
    """(D_new, D_old) M: features of old rows in the new model, from those they had. Products of sums are multiplied."""
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
    """(D_new, D_old) from old weights to new ones: of a feature that stays its own, of merged ones the mean of theirs.

    What is a constant in all old rows, or a constant times another feature, begins with no weight: that has it already.
    """
    before, after = (torch.tensor([len(m) for m in body.monomials], device=M.device) for body in (old, new))
    L = torch.where(after[:, None] == before, M, 0.0)
    return L / L.sum(1, keepdim=True).clamp(min=1)


def change_input(
    state: State, memory: Examples, task: ChangeInput, new: Predictor, regularizer: L2
) -> tuple[State, Examples]:
    """The state in terms of other columns."""
    old = state.predictor
    assert isinstance(old.encoder, TableEncoder)
    assert isinstance(new.encoder, TableEncoder)
    x = torch.from_numpy(task.conversion(memory.x.cpu().numpy()))
    rows = replace(memory, x=x)
    A = map_encoded(old.encoder, new.encoder, task.conversion).to(old.device)
    surrogate = map_surrogate(state.surrogate, A)
    if not (isinstance(old.body, Linear) and isinstance(new.body, Linear)):
        return transplant_network(state, rows, new, regularizer, surrogate, columns=lift_inputs(A)), rows
    if not isinstance(state.curvature, Full):
        raise Untransferable("it carries too little of its past to follow")
    K = old.family.outputs
    M = map_features(old.body, new.body, A.cpu()).to(old.device)
    L = lift(M, old.body, new.body)

    def lifted(w: Tensor) -> Tensor:
        return (w.view(K, -1) @ L.T).reshape(-1)

    follows = torch.equal(lifted(state.anchor.w).view(K, -1) @ M, state.anchor.w.view(K, -1))
    if not follows:
        state = recentre(state, memory)
    anchor = state.anchor
    assert isinstance(anchor.curvature, Full)
    w0 = lifted(anchor.w)
    step = (w0.view(K, -1) @ M).reshape(-1) - anchor.w  # as the old features would have it
    gradient = (anchor.gradient + anchor.curvature.product(step)).view(K, -1) @ M.T
    G = torch.einsum("ad,kdle,be->kalb", M, anchor.curvature.matrix.view(K, M.shape[1], K, -1), M)
    moved = Anchor(w0, gradient.reshape(-1), Full(G.reshape(new.size, new.size)))
    kept = align(state, memory)
    remembered = replace(kept, x=torch.from_numpy(task.conversion(kept.x.cpu().numpy())))
    if follows or isinstance(old.family, Gaussian):
        if anchor.exact:
            moved = carry_figures(state, moved, new, regularizer, M)
    else:
        moved = correct(moved, new, remembered, exact_rows(old, anchor.w, kept).f0)
    memory_now = remember(new, w0, remembered, state.memory.weight, state.memory.generation)
    changed = State(
        new, regularizer, state.regularizer_spec, lifted(state.w), moved, memory_now, state.count, surrogate
    )
    return changed, rows


def carry_figures(state: State, moved: Anchor, new: Predictor, regularizer: L2, M: Tensor) -> Anchor:
    """What is known of exact sums stays known: no row's leverage grows by more than the largest |M u|^2 / |u|^2."""
    anchor, K = state.anchor, state.predictor.family.outputs
    before = cholesky(hessian_of(state.predictor, state.regularizer, anchor))
    H = hessian_of(new, regularizer, moved)
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        return moved
    ratio = growth(before, factor, M, K)
    norm = float(torch.linalg.matrix_norm(M, 2))
    lost = float((anchor.gradient.abs().view(K, -1) @ M.abs().T).norm())
    return replace(
        moved,
        exact=True,
        reach=round_up(anchor.reach * ratio),
        peak=round_up(anchor.peak * ratio),
        smallest=smallest_eigenvalue(H, InformedSpace.of(moved, regularizer.delta, K)),
        rounding=round_up(norm * anchor.rounding + M.shape[1] * lost),
        mass=round_up(norm * norm * anchor.mass),
    )


def growth(before: Tensor, after: Tensor, M: Tensor, K: int) -> float:
    """By how much a leverage can have grown, given the factors of both Hessians.

    What moves a softmax's curvature are differences of classes: (e_k - e_l) phi_i. A constant that is added to all
    of them has nothing to do with it, and may be free in one model and penalised in the other.
    """
    D = M.shape[1]
    classes = torch.eye(K).to(M) if K == 1 else torch.linalg.qr(torch.eye(K).to(M)[:, 1:] - 1 / K)[0].contiguous()
    old = torch.linalg.solve_triangular(before, torch.kron(classes, torch.eye(D).to(M)), upper=False)
    new = torch.linalg.solve_triangular(after, torch.kron(classes, M.contiguous()), upper=False)
    R = torch.linalg.qr(old, mode="r")[1]
    white = torch.linalg.solve_triangular(R, new, upper=True, left=False)
    return max(0.0, float(torch.linalg.eigvalsh(white.T @ white)[-1])) * (1 + 1e-6)


def correct(anchor: Anchor, new: Predictor, rows: Examples, f0: Tensor) -> Anchor:
    """The sums with the memory's rows as they are, in place of what a tangent at their old outputs f0 makes of them."""
    assert isinstance(anchor.curvature, Full)
    here, family = exact_rows(new, anchor.w, rows), new.family
    old = replace(here, f0=f0)
    bend = family.mean(here.f0) - family.mean(f0) - old.tangent(family, here.f0 - f0)
    v = here.weight
    G = anchor.curvature.matrix + glm_hessian(here.phi, family, here.f0, v) - glm_hessian(here.phi, family, f0, v)
    curvature = Full(G)
    curvature.clip()
    return Anchor(anchor.w, anchor.gradient + (here.weighted(bend).T @ here.phi).reshape(-1), curvature)


def map_surrogate(surrogate: Surrogate | None, A: Tensor) -> Surrogate | None:
    """Sums over encoded inputs and 1, as the new encoder has them."""
    if surrogate is None:
        return None
    one = torch.zeros(1, A.shape[1], dtype=A.dtype, device=A.device)
    one[0, -1] = 1
    B = torch.cat([A, one])
    return Surrogate(B @ surrogate.gram @ B.T, B @ surrogate.cross, B @ surrogate.moment @ B.T)


def lift_inputs(A: Tensor) -> Tensor:
    """(E_new, E_old): which old inputs a new one takes its weights from."""
    L = A[:, :-1]
    return L / L.sum(1, keepdim=True).clamp(min=1)


def class_weights(task: ChangeTarget, outputs: int) -> Tensor:
    """(K_new, K_old) from old outputs to new ones."""
    K = len(values_of(task.target))
    if outputs == 1:  # f of 0 and 1 is the difference of two outputs
        C = torch.zeros(K, 1, dtype=torch.float64)
        C[int(task.classes[0]), 0], C[int(task.classes[1]), 0] = -0.5, 0.5
        return C
    C = torch.zeros(K, outputs, dtype=torch.float64)
    for before, after in enumerate(task.classes):
        if not math.isnan(after):
            C[int(after), before] = 1
    return C / C.sum(1, keepdim=True).clamp(min=1)


def change_target(
    state: State, memory: Examples, task: ChangeTarget, new: Predictor, regularizer: L2
) -> tuple[State, Examples]:
    """The state in terms of other classes: what the memory says of them, its rows standing for all."""
    old = state.predictor
    K = old.family.outputs
    rows = replace(memory, y=convert_labels(memory.y, task))
    C = class_weights(task, K).to(old.device)
    shift = torch.zeros(len(C), dtype=torch.float64, device=old.device)
    fresh = (C != 0).sum(1) == 0
    shift[fresh] = -math.log(max(2, state.count))  # of a class that nobody has seen
    shift[~fresh] = (C[~fresh] != 0).sum(1).double().log() if K > 1 else 0.0
    if not (isinstance(old.body, Linear) and isinstance(state.curvature, Full)):
        if old.linear:
            raise Untransferable("it carries too little of its past to follow")
        surrogate = Surrogate.zeros(new)
        made = transplant_network(state, rows, new, regularizer, surrogate, classes=C, shift=shift)
        if surrogate is not None:
            share, own = state.count / max(1, len(rows)), new.weigh(rows)
            surrogate.add(new, made.w, rows.x, torch.full((len(rows),), share) if own is None else share * own)
        return made, rows
    state = recentre(state, memory)
    kept = align(state, memory)
    rows = replace(kept, y=convert_labels(kept.y, task))
    anchor, v = state.anchor, state.memory.weight.double()
    assert isinstance(anchor.curvature, Full)
    W = C @ anchor.w.view(K, -1)
    W[:, -1] += shift
    w = W.reshape(-1)
    before, after = exact_rows(old, anchor.w, kept), exact_rows(new, w, rows)
    v = v if before.weight is None else v * before.weight
    E = C.sign()  # from old means, less a constant, to new ones
    h0 = old.family.mean(before.f0) @ E.T
    if K == 1:
        h0 = h0 + (E.T < 0)
    D = after.phi.shape[1]
    gradient = E @ anchor.gradient.view(K, -1) + (v[:, None] * (new.family.mean(after.f0) - h0)).T @ after.phi
    # a few rows that stand for many may have more curvature in some direction than all have; what the memory says of
    # new classes counts in full all the same
    known = Full(anchor.curvature.matrix - glm_hessian(before.phi, old.family, before.f0, v))
    known.clip()
    G = torch.einsum("ak,kdle,bl->adbe", E, known.matrix.view(K, D, K, D), E).reshape(new.size, new.size)
    curvature = Full(G + glm_hessian(after.phi, new.family, after.f0, v))
    remembered = remember(new, w, rows, state.memory.weight, state.memory.generation)
    surrogate = Surrogate.zeros(new)
    if surrogate is not None:
        surrogate.add(new, w, rows.x, v)
    anchored = Anchor(w, gradient.reshape(-1), curvature)
    return State(new, regularizer, state.regularizer_spec, w, anchored, remembered, state.count, surrogate), rows


def convert_labels(y: Tensor, task: ChangeTarget) -> Tensor:
    """Targets of old rows as the new classes have them: (n, K_old) -> (n, K_new)."""
    codes = y.argmax(1) if y.shape[1] > 1 else y[:, 0].round().long()
    found = torch.tensor(task.classes, dtype=torch.float64)[codes.cpu()]
    if bool(found.isnan().any()):
        raise Untransferable("examples of a class that is gone are remembered")
    return torch.nn.functional.one_hot(found.long(), len(values_of(task.target))).to(y)


def transplant_network(
    state: State,
    rows: Examples,
    new: Predictor,
    regularizer: L2,
    surrogate: Surrogate | None,
    *,
    columns: Tensor | None = None,
    classes: Tensor | None = None,
    shift: Tensor | None = None,
) -> State:
    """A network whose first layer reads other inputs, or whose last one says other classes; all else stays."""
    if new.spec["architecture"]["kind"] != "mlp" and columns is not None:
        raise Untransferable("what its first layer reads is not known")
    w = new.initial_weights()
    theirs, ours = layers_of(state.predictor, state.w), layers_of(new, w)
    for a, b in zip(theirs, ours, strict=True):
        first, last = b is ours[0] and columns is not None, b is ours[-1] and classes is not None
        for name, values in a.items():
            if first and name == "weight":
                assert columns is not None
                values = values @ columns.T.to(values)
            if last:
                assert classes is not None
                assert shift is not None
                values = classes.to(values) @ values
                if name == "bias":
                    values = values + shift.to(values)
            if b[name].shape != values.shape:
                raise Untransferable("its layers are not those of a network that can follow")
            b[name].copy_(values)
    anchor = Anchor(w, torch.zeros_like(w), None)
    order = torch.argsort(rows.key.cpu())
    found = order[torch.searchsorted(rows.key.cpu()[order], state.memory.key)]
    kept = rows.take(found) if len(rows) else rows
    memory = remember(new, w, kept, state.memory.weight, state.memory.generation)
    return State(new, regularizer, state.regularizer_spec, w, anchor, memory, state.count, surrogate)
