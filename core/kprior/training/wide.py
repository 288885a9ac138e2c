"""Training GLMs of many weights by passes for the gradient alone: optima of growing samples, then all rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from core.kprior.adaptation.dense import AnchoredModel
from core.kprior.anchor import Anchor
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.dense import certificate_of
from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, glm_hessian, is_wide
from core.kprior.curvature.estimate import estimate_curvature, estimate_inverse, sample_fraction
from core.kprior.curvature.row_space import has_few_rows
from core.kprior.data.encoded import EncodedData
from core.kprior.data.examples import concatenate
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import Spec
from core.kprior.objective.wide import WideObjective, WideSolution, descent_reporter
from core.kprior.passes.measurement import choose_memory, measure
from core.kprior.result import Result
from core.kprior.solvers import Progress, SolverError, Training
from core.kprior.state import State

MAX_NEWTON_WEIGHTS, MAX_NEWTON_WORK = 200, 4e9
"""Weights, or multiplications of one pass, up to which training gathers a Hessian in every step."""
TOLERANCE = 0.005
"""The relative bound that training by gradients ends with."""
MIN_SAMPLE_ROWS = 4_000
"""Of the first sample of a training."""
SAMPLE_GROWTH = 4
MAX_STAGES = 10
"""Of few rows: their curvature is taken anew where each stage ended."""
SAMPLE_TOLERANCE = 2.0
"""How many times the sample's own uncertainty its optimum may be off."""


def descends_by_gradients(predictor: Predictor, regularizer: L2, curvature: str | None) -> bool:
    """Whether a GLM has so many weights that its gradient alone is descended along."""
    penalised = bool((regularizer.delta > 0).any())
    large = is_wide(predictor) or predictor.size > MAX_NEWTON_WEIGHTS
    return predictor.linear and large and curvature == "auto" and penalised


def train_by_gradients(
    spec: Spec,
    predictor: Predictor,
    regularizer: L2,
    encoded: EncodedData,
    training: Training,
    policy: MemoryPolicy,
    cost: Cost,
    progress: Progress | None,
) -> Result:
    """Train a GLM by passes for the gradient alone; where its Hessian fits, it is gathered once, at the end."""
    data = encoded.data
    found, curvature = train_wide(predictor, regularizer, encoded, training, cost, TOLERANCE, progress)
    count, regularizer_spec = found.seen.count, spec["regularizer"].copy()
    size = policy.size(count)
    if is_wide(predictor):
        memory, rows, surrogate = choose_memory(predictor, found.w, data, size, policy, cost, seed=training.seed)
        gradient = found.seen.gradient.reshape(-1)
        anchor = Anchor(found.w, gradient, curvature, exact=True, rounding=found.seen.rounding, value=found.seen.value)
        state = State(predictor, regularizer, regularizer_spec, found.w, anchor, memory, count, surrogate)
        bound = (found.gradient_norm, 0, found.bound, found.relative)
        return Result(state, rows, cost, found.relative <= TOLERANCE, Certificate("bound", *bound))
    sample = encoded.sample(sample_fraction(predictor, count), training.seed)
    some = concatenate(sample)
    phi = some.x.to(predictor.dtype)
    f = phi @ found.w.view(predictor.family.outputs, -1).T
    near = glm_hessian(phi, predictor.family, f, some.weight, some.y.to(f)) * (count / len(phi))
    near = near + torch.diag(regularizer.delta)
    arguments = (predictor, regularizer, found.w, data, size, policy, "full", cost)
    measured = measure(*arguments, seed=training.seed, near=near)
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


def train_wide(
    predictor: Predictor,
    regularizer: L2,
    data: EncodedData,
    training: Training,
    cost: Cost,
    tolerance: float,
    progress: Progress | None = None,
) -> tuple[WideSolution, Curvature]:
    """From zero: optima of growing samples, each the start of the next, then all rows; and a preconditioner."""
    if not bool((regularizer.delta > 0).any()):
        raise SolverError("a wide model needs a penalty: nothing else holds its weights")
    D = predictor.size // predictor.family.outputs
    w = torch.zeros(predictor.size, dtype=predictor.dtype, device=predictor.device)
    count, size = data.count_rows(), max(MIN_SAMPLE_ROWS, 2 * D)
    if count == 0:
        raise ValueError("there is nothing to train on: no examples")
    report = None if progress is None else descent_reporter(progress)
    while size * 1.5 < count:
        some = data.sample(size / count, training.seed)
        sampled = WideObjective(predictor, regularizer, EncodedData(predictor, some), cost)
        sampled.scale = count / max(1, sum(len(chunk) for chunk in some))
        loose = SAMPLE_TOLERANCE * tolerance * math.sqrt(count / size)
        for max_passes in (20, 60) if not bool(w.any()) else (60,):  # the curvature at zero is soon out of date
            inverse = estimate_inverse(predictor, w, some, count, training.seed, regularizer.delta)
            w = sampled.minimise(w, inverse, loose, certified=False, max_passes=max_passes).w
        size *= SAMPLE_GROWTH
    objective = WideObjective(predictor, regularizer, data, cost)
    some = data.sample(sample_fraction(predictor, count), training.seed)
    if not bool(w.any()):  # no sample was needed: the curvature of all rows, at zero and where that leads
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
        raise SolverError("the objective is not finite: check the examples for extreme values")
    return measured, curvature
