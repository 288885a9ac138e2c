"""What a model would be after a change: adapt, and refine or retrain if the adaptation does not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from core.kprior.adaptation.adaptation import adapt
from core.kprior.adaptation.erasure import refine_for_erasure
from core.kprior.adaptation.network_survey import Survey
from core.kprior.adaptation.result import Result
from core.kprior.adaptation.schema import Untransferable
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Reuse
from core.kprior.certificate.wide_bound import has_free_bias
from core.kprior.curvature import is_wide
from core.kprior.data.examples import Data, Examples
from core.kprior.data.random_samples import Draw
from core.kprior.data.schema_conversion import same_schema
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.spec import Spec
from core.kprior.objective.tasks import (
    ChangeInput,
    ChangeLoss,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Task,
)
from core.kprior.passes.cost import Cost
from core.kprior.passes.moments import encoder_fits
from core.kprior.solvers import Progress, Training
from core.kprior.state import State
from core.kprior.training.training import Execution, Predecessor, train


@dataclass(frozen=True)
class WhatIfOptions:
    """How close a preview must be to a retrain, and the options of training."""

    tolerance: float | None = 0.01
    """The largest acceptable relative bound of a GLM; None: none is required."""
    forced: bool = False
    """Make a pass even if the bound suffices without one."""
    rounds: int = 5
    """The maximum number of passes before a retrain."""
    erasure: bool = False
    """Bring the weights to a point that depends on the retained data alone, as an erasure does."""
    retrain: bool = False
    """Train from scratch, because the adapted model was rejected."""
    keeps_units: bool = True
    """A retrain with the same columns keeps the units of the present model."""
    training: Training = field(default_factory=Training)
    policy: MemoryPolicy = field(default_factory=MemoryPolicy)


@dataclass(frozen=True)
class WhatIf:
    """The model that a change would give."""

    result: Result
    method: str
    """`kprior` or `retrain`."""
    sufficient: bool
    """Whether the bound is within the tolerance. If it is not, pass the retained data."""


def what_if(
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    *,
    retained: Data | None = None,
    options: WhatIfOptions | None = None,
    holdout: Data = (),
    draw: Draw | Survey | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """The model after a change, as an adaptation would make it. The state itself stays as it is.

    Parameters
    ----------
    state
        The model as it is.
    memory
        The rows that `state.memory` refers to.
    tasks
        What changes, as for `adapt`.
    retained
        All examples after the change, for changes whose bound needs passes; None: no pass is made.
    options
        Tolerance and options of training.
    holdout
        Examples whose predictions are bounded as well.
    draw
        Draws rows of the retained data; networks require it.
    progress
        Called with a fraction from 0 to 1 and a phrase; may raise to stop the work.

    Returns
    -------
    WhatIf
        The new state, its certificate and cost, and whether it suffices.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, RemoveData, train, what_if
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None].double()
    >>> rows = Examples(torch.arange(10), x, 3 * x + torch.sin(x))
    >>> base = train(spec, [rows])
    >>> found = what_if(base.state, base.memory, [RemoveData([rows.take(rows.key < 2)])])
    >>> retrained = train(spec, [rows.take(rows.key >= 2)]).state
    >>> found.sufficient, found.result.cost.data_passes, torch.allclose(found.result.state.w, retrained.w)
    (True, 0, True)
    """
    options = options or WhatIfOptions()
    execution = Execution(device=state.predictor.device, progress=progress)
    result: Result | None = None
    if not options.retrain and not replaces_splits(state.spec, tasks):
        try:
            common = {"training": options.training, "policy": options.policy, "holdout": holdout}
            result = adapt(state, memory, tasks, draw=draw, progress=progress, **common)  # type: ignore[arg-type]
        except (Untransferable, ArithmeticError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            pass
    if retained is None and (result is None or options.erasure):
        return WhatIf(Result(state, memory, Cost(), False), "kprior", False)
    if options.erasure:
        assert retained is not None
        return without_erased(state, result, retained, options, holdout, execution)
    if result is not None and (not result.state.predictor.linear or suffices(result, options)):
        return WhatIf(result, "kprior", True)
    if retained is None:
        assert result is not None
        return WhatIf(result, "kprior", False)
    if result is not None:
        reuse = Reuse.LEVERAGES if options.forced else Reuse.SUMS
        tolerance = 0.0 if options.tolerance is None else options.tolerance
        refinement = Refinement(tolerance, options.rounds, holdout, options.policy, options.training.seed, reuse)
        found = refinement.run(result.state, result.memory, retained)
        cost = result.cost + found.cost
        result = replace(result, state=found.state, memory=found.memory, cost=cost, certificate=found.certificate)
        if options.tolerance is None or found.certificate.meets(options.tolerance):
            return WhatIf(result, "kprior", True)
        if lacks_class(result.state, retained):  # a retrain would have no bound either
            return WhatIf(result, "kprior", True)
    spec = spec_after(state.spec, tasks)
    has_splits = "trees" in (state.spec["architecture"]["kind"], spec["architecture"]["kind"])
    keeps = options.keeps_units and same_schema(state.spec, spec) and not has_splits
    trained = retrain(spec, retained, options, execution, Predecessor(state) if keeps else None)
    if result is not None:
        trained = replace(trained, cost=result.cost + trained.cost)
    return WhatIf(trained, "retrain", True)


def without_erased(
    state: State, result: Result | None, retained: Data, options: WhatIfOptions, holdout: Data, execution: Execution
) -> WhatIf:
    """The model after an erasure: the adapted one, refined until its weights depend on the retained data alone, or
    trained anew."""
    dense = state.predictor.linear and not is_wide(state.predictor) and state.spec["architecture"]["kind"] != "trees"
    if dense:
        if result is None or not encoder_fits(result.state.predictor.encoder, retained):
            result = retrain(state.spec, retained, options, execution)
        tolerance = 0.01 if options.tolerance is None else options.tolerance
        given = {"tolerance": tolerance, "rounds": options.rounds, "holdout": holdout, "policy": options.policy}
        found = refine_for_erasure(
            result.state,
            result.memory,
            retained,
            seed=options.training.seed,
            **given,  # type: ignore[arg-type]
        )
        if found is not None:
            made = replace(result, state=found.state, memory=found.memory)
            return WhatIf(replace(made, cost=found.cost, certificate=found.certificate), "kprior", True)
    return WhatIf(retrain(state.spec, retained, options, execution), "retrain", True)


def retrain(
    spec: Spec, data: Data, options: WhatIfOptions, execution: Execution, predecessor: Predecessor | None = None
) -> Result:
    """The model trained from scratch."""
    common = {"training": options.training, "policy": options.policy, "execution": execution}
    return train(spec, data, predecessor=predecessor, **common)  # type: ignore[arg-type]


def suffices(result: Result, options: WhatIfOptions) -> bool:
    """Whether a result needs no pass."""
    if options.forced:
        return False
    return options.tolerance is None or (result.certificate is not None and result.certificate.meets(options.tolerance))


def lacks_class(state: State, data: Data) -> bool:
    """Whether no example has one of the classes, and the bias of this class is free, so that it has no optimum."""
    family = state.predictor.family
    if family.name != "categorical" or not has_free_bias(state.regularizer, family.outputs):
        return False
    counts = torch.zeros(family.outputs, dtype=torch.float64)
    for chunk in data:
        counts += chunk.y.double().sum(0).cpu()
    return bool((counts == 0).any())


def replaces_splits(spec: Spec, tasks: Sequence[Task]) -> bool:
    """Whether a change of the architecture learns the splits of trees, or leaves them behind, which takes a retrain."""
    old, new = spec["architecture"], spec_after(spec, tasks)["architecture"]
    return old != new and "trees" in (old["kind"], new["kind"])


def spec_after(spec: Spec, tasks: Sequence[Task]) -> Spec:
    """The spec after a change.

    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> spec_after(spec, [ChangeRegularizer({"kind": "l2", "delta": 2.0})])["regularizer"]["delta"]
    2.0
    """
    after = spec.copy()
    for task in tasks:
        match task:
            case ChangeRegularizer():
                after["regularizer"] = task.regularizer
            case ChangeModel():
                after["architecture"] = task.architecture
            case ChangeInput():
                after["input"] = task.input
            case ChangeTarget():
                after["target"] = task.target
            case ChangeLoss():
                after["loss"] = task.loss
            case _:
                pass
    return after
