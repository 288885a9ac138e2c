"""Other columns: sums over old rows in terms of new features.

The new features of an old row are a linear map of its old ones, phi_new = M phi: a new column is a constant in all old
rows, a renamed column stays, and the indicators of merged values are added. So the sums at the anchor are mapped
without reading any row: gradient M g, curvature M G M'. If the weights can also be mapped, so that every old row keeps
its outputs (M' w_new = w: nothing with a weight was dropped or merged), or if the curvature does not depend on the
outputs, then these sums are exact, and so is everything that follows from them. Otherwise they are estimates, into
which the rows of the memory enter exactly: with all rows in memory nothing is lost, with fewer a pass measures the sums
anew.
"""

from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.recentre import recentre
from core.kprior.adaptation.schema.feature_maps import lift, lift_inputs, map_encoded, map_features
from core.kprior.adaptation.schema.networks import transplant_network
from core.kprior.adaptation.schema.untransferable import Untransferable
from core.kprior.certificate.anchored_model import exact_rows
from core.kprior.curvature import Full, cholesky
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Examples
from core.kprior.data.schema_conversion import Conversion
from core.kprior.memory.memory import remember
from core.kprior.model.architectures import Linear
from core.kprior.model.families import Family, Gaussian
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.tasks import ChangeInput
from core.kprior.passes.rounding_error import round_up
from core.kprior.state import State, align
from core.kprior.state.anchor import Anchor, hessian_of
from core.kprior.state.informed_space import InformedSpace
from core.kprior.state.measurement import smallest_eigenvalue


def change_input(
    state: State, memory: Examples, task: ChangeInput, new: Predictor, regularizer: L2
) -> tuple[State, Examples]:
    """The state in terms of other columns."""
    old = state.predictor
    assert isinstance(old.encoder, TableEncoder)
    assert isinstance(new.encoder, TableEncoder)
    A = map_encoded(old.encoder, new.encoder, task.conversion).to(old.device)
    surrogate = map_surrogate(state.surrogate, A)
    if not (isinstance(old.body, Linear) and isinstance(new.body, Linear)):
        rows = convert_rows(memory, task.conversion)
        return transplant_network(state, rows, new, regularizer, surrogate, columns=lift_inputs(A)), rows
    if not isinstance(state.curvature, Full):
        raise Untransferable("it does not carry the curvature that this change requires")
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
    step = (w0.view(K, -1) @ M).reshape(-1) - anchor.w  # in terms of the old features
    gradient = (anchor.gradient + anchor.curvature.product(step)).view(K, -1) @ M.T
    G = torch.einsum("ad,kdle,be->kalb", M, anchor.curvature.matrix.view(K, M.shape[1], K, -1), M)
    value = anchor.tangent_value(step)
    G = G.reshape(new.size, new.size)
    moved = Anchor(w0, gradient.reshape(-1), Full(G), value=value, turnover=anchor.turnover)
    kept = align(state, memory)
    rows = convert_rows(kept, task.conversion)
    if follows or isinstance(old.family, Gaussian):
        if anchor.exact:
            moved = carry_figures(state, moved, new, regularizer, M)
    else:
        moved = correct_memory_rows(moved, new, rows, exact_rows(old, anchor.w, kept).f0)
    memory_now = remember(new, w0, rows, state.memory.weight, state.memory.generation)
    changed = State(
        new, regularizer, state.regularizer_spec, lifted(state.w), moved, memory_now, state.count, surrogate
    )
    return changed, rows


def convert_rows(rows: Examples, conversion: Conversion) -> Examples:
    """Old rows in terms of the new columns."""
    return replace(rows, x=torch.from_numpy(conversion(rows.x.cpu().numpy())))


def carry_figures(state: State, moved: Anchor, new: Predictor, regularizer: L2, M: Tensor) -> Anchor:
    """Map the bounds of exact sums: no leverage grows by more than the largest |M u|^2 / |u|^2."""
    anchor, K = state.anchor, state.predictor.family.outputs
    before = cholesky(hessian_of(state.predictor, state.regularizer, anchor))
    H = hessian_of(new, regularizer, moved)
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        return moved
    ratio = max_leverage_growth(before, factor, M, new.family)
    norm = float(torch.linalg.matrix_norm(M, 2))
    lost = float((anchor.gradient.abs().view(K, -1) @ M.abs().T).norm())
    return replace(
        moved,
        exact=True,
        reach=round_up(anchor.reach * ratio),
        peak=round_up(anchor.peak * ratio),
        smallest=smallest_eigenvalue(H, InformedSpace.of(moved, regularizer.delta, new.family)),
        rounding=round_up(norm * anchor.rounding + M.shape[1] * lost),
        mass=round_up(norm * norm * anchor.mass),
    )


def max_leverage_growth(before: Tensor, after: Tensor, M: Tensor, family: Family) -> float:
    """The largest factor by which a leverage can have grown, given the factors of both Hessians.

    The curvature of a softmax depends on differences of classes, (e_k - e_l) phi_i. A constant that is added to all
    classes does not matter, and may be free in one model and penalised in the other.
    """
    D, K = M.shape[1], family.outputs
    classes = torch.linalg.qr(torch.eye(K).to(M)[:, 1:] - 1 / K)[0] if family.coupled else torch.eye(K).to(M)
    classes = classes.clone(memory_format=torch.contiguous_format)  # `contiguous` leaves strides that kron refuses
    old = torch.linalg.solve_triangular(before, torch.kron(classes, torch.eye(D).to(M)), upper=False)
    new = torch.linalg.solve_triangular(after, torch.kron(classes, M.contiguous()), upper=False)
    R = torch.linalg.qr(old, mode="r")[1]
    white = torch.linalg.solve_triangular(R, new, upper=True, left=False)
    return max(0.0, float(torch.linalg.eigvalsh(white.T @ white)[-1])) * (1 + 1e-6)


def correct_memory_rows(anchor: Anchor, new: Predictor, rows: Examples, f0: Tensor) -> Anchor:
    """The sums with the exact terms of the memory's rows, in place of their tangents at the old outputs f0."""
    assert isinstance(anchor.curvature, Full)
    after, family = exact_rows(new, anchor.w, rows), new.family
    old = replace(after, f0=f0)
    bend = old.bend(family, after.f0)
    curvature = Full(anchor.curvature.matrix + after.hessian(family, after.f0) - after.hessian(family, f0))
    curvature.clip()
    return Anchor(anchor.w, anchor.gradient + (after.weighted(bend).T @ after.phi).reshape(-1), curvature)


def map_surrogate(surrogate: Surrogate | None, A: Tensor) -> Surrogate | None:
    """The surrogate in terms of the new encoder."""
    if surrogate is None:
        return None
    one = torch.zeros(1, A.shape[1], dtype=A.dtype, device=A.device)
    one[0, -1] = 1
    B = torch.cat([A, one])
    return Surrogate(B @ surrogate.gram @ B.T, B @ surrogate.cross)
