"""Training of GLMs with many weights by gradient passes: optima of growing samples, then all rows."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.result import Result
from core.kprior.certificate.anchored_model import AnchoredModel
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.dense import certificate_of
from core.kprior.certificate.labels import wide_label_bounds
from core.kprior.certificate.wide_objective import WideObjective, WideSolution, descent_reporter
from core.kprior.curvature import Curvature, glm_hessian, is_wide
from core.kprior.curvature.estimate import estimate_curvature, estimate_inverse, sample_fraction
from core.kprior.curvature.row_space import has_few_rows
from core.kprior.data.examples import concatenate
from core.kprior.memory.memory import MemoryChoice, MemoryPolicy
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import Spec
from core.kprior.model.tree_leaves import Leaves
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.solvers import Progress, SolverError, Training
from core.kprior.state import State
from core.kprior.state.anchor import Anchor
from core.kprior.state.measurement import choose_memory, measure

MAX_NEWTON_WEIGHTS, MAX_NEWTON_WORK = 200, 4e9
"""Number of weights, or of multiplications in a pass, up to which training computes a Hessian in every step."""
TOLERANCE = 0.005
"""The relative bound at which training by gradients ends."""
MIN_SAMPLE_ROWS = 4_000
"""The smallest first sample."""
SAMPLE_GROWTH = 4
MAX_STAGES = 10
"""The maximum number of stages for few rows; each stage uses the curvature at the end of the previous one."""
SAMPLE_TOLERANCE = 8.0
"""Length of the last step on a sample, as a multiple of the tolerance, for a sample as large as all rows."""


def descends_by_gradients(predictor: Predictor, regularizer: L2, curvature: str | None) -> bool:
    """Whether a GLM has so many weights that training uses gradients alone."""
    penalised = bool((regularizer.delta > 0).any())
    large = is_wide(predictor) or predictor.size > MAX_NEWTON_WEIGHTS
    return predictor.linear and large and curvature == "auto" and penalised


def train_by_gradients(
    spec: Spec,
    regularizer: L2,
    encoded: EncodedData,
    training: Training,
    policy: MemoryPolicy,
    cost: Cost,
    progress: Progress | None,
    start: Tensor | None = None,
) -> Result:
    """Train a GLM by gradient passes; if its Hessian fits in memory, it is measured once, at the end."""
    predictor, data = encoded.predictor, encoded.data
    found, curvature = train_wide(predictor, regularizer, encoded, training, cost, TOLERANCE, progress, start)
    count, regularizer_spec = found.seen.count, spec["regularizer"].copy()
    choice = MemoryChoice(policy, policy.size(count), training.seed)
    if is_wide(predictor):
        memory, rows, surrogate = choose_memory(predictor, found.w, data, choice, cost)
        gradient = found.seen.gradient.reshape(-1)
        anchor = Anchor(found.w, gradient, curvature, exact=True, rounding=found.seen.rounding, value=found.seen.value)
        state = State(predictor, regularizer, regularizer_spec, found.w, anchor, memory, count, surrogate)
        labels = wide_label_bounds(regularizer, found.seen, found.bound)
        certificate = Certificate("bound", found.gradient_norm, 0, found.bound, found.relative, labels=labels)
        return Result(state, rows, cost, found.relative <= TOLERANCE, certificate)
    near = None
    if not isinstance(predictor.body, Leaves):  # whose leverages cost less than comparing two Hessians of this size
        some = concatenate(encoded.sample(sample_fraction(predictor, count), training.seed))
        phi = some.x.to(predictor.dtype)
        f = phi @ found.w.view(predictor.family.outputs, -1).T
        near = glm_hessian(phi, predictor.family, f, some.weight, some.y.to(f)) * (count / len(phi))
        near = near + torch.diag(regularizer.delta)
    measured = measure(predictor, regularizer, found.w, data, choice, "full", cost, near)
    parts = (measured.anchor, measured.memory, count, measured.surrogate)
    state = State(predictor, regularizer, regularizer_spec, found.w, *parts)
    if measured.anchor.smallest == 0:
        return Result(state, measured.rows, cost, False)
    anchored = AnchoredModel.of(state, measured.rows)
    try:
        w = anchored.solve(found.w, training, cost)
    except ArithmeticError:
        return Result(state, measured.rows, cost, False)
    certificate = certificate_of(anchored, anchored.bound(w), w, 0)
    near_enough = certificate.meets(TOLERANCE)
    return Result(replace(state, w=w), measured.rows, cost, near_enough, certificate)


def better_start(w: Tensor, start: Tensor, regularizer: L2, data: EncodedData, seed: int) -> Tensor:
    """The one of two weights (P,) whose objective on a sample is smaller."""
    count = data.count_rows()
    some = data.sample(min(1.0, MIN_SAMPLE_ROWS / max(1, count)), seed)
    objective = WideObjective(data.predictor, regularizer, EncodedData(data.predictor, some), Cost())
    objective.scale = count / max(1, sum(len(chunk) for chunk in some))
    return start if objective.evaluate(start, False).value < objective.evaluate(w, False).value else w


def train_wide(
    predictor: Predictor,
    regularizer: L2,
    data: EncodedData,
    training: Training,
    cost: Cost,
    tolerance: float,
    progress: Progress | None = None,
    start: Tensor | None = None,
) -> tuple[WideSolution, Curvature]:
    """Train by optima of growing samples, each the start of the next; returns a preconditioner as well.

    `start` are weights that may be near the optimum; they are used if they are better than zero.
    """
    if not bool((regularizer.delta > 0).any()):
        raise SolverError("A wide model needs a penalty; nothing else determines its weights.")
    D = predictor.size // predictor.family.outputs
    w = torch.zeros(predictor.size, dtype=predictor.dtype, device=predictor.device)
    count, size = data.count_rows(), max(MIN_SAMPLE_ROWS, 2 * D)
    if count == 0:
        raise ValueError("There are no examples to train on.")
    report = None if progress is None else descent_reporter(progress)
    if start is not None:
        w = better_start(w, start, regularizer, data, training.seed)
    samples = size * 1.5 < count
    while size * 1.5 < count:
        some = data.sample(size / count, training.seed)
        sampled = WideObjective(predictor, regularizer, EncodedData(predictor, some), cost)
        sampled.scale = count / max(1, sum(len(chunk) for chunk in some))
        loose = SAMPLE_TOLERANCE * tolerance * math.sqrt(count / size)
        for max_passes in (20, 60) if not bool(w.any()) else (60,):  # the curvature at zero is soon outdated
            inverse = estimate_inverse(predictor, w, some, count, training.seed, regularizer.delta)
            w = sampled.minimise(w, inverse, loose, certified=False, max_passes=max_passes).w
        size *= SAMPLE_GROWTH
    objective = WideObjective(predictor, regularizer, data, cost)
    some = data.sample(sample_fraction(predictor, count), training.seed)
    if not samples:  # use the curvature of all rows, at the start and at the result
        for _ in range(MAX_STAGES if has_few_rows(predictor, count, regularizer.delta) else 1):
            inverse = estimate_inverse(predictor, w, some, count, training.seed, regularizer.delta)
            descent = objective.minimise(w, inverse, 10 * tolerance, certified=False, max_passes=20, report=report)
            w = descent.w
            if descent.stopped:
                break
    curvature = estimate_curvature(predictor, w, some, count, training.seed)
    inverse = estimate_inverse(predictor, w, some, count, training.seed, regularizer.delta, curvature)
    descent = objective.minimise(w, inverse, tolerance, report=report)
    measured = objective.measure(descent)
    if not math.isfinite(measured.seen.value):
        raise SolverError("The objective is not finite. Check the examples for extreme values.")
    return measured, curvature
