"""The first state of a model with imported weights: one pass measures the examples there."""

from collections.abc import Mapping

import torch
from torch import Tensor

from core.kprior.adaptation.result import Result
from core.kprior.certificate.dense import certify_anchored, is_dense
from core.kprior.curvature import glm_hessian, is_wide
from core.kprior.data.examples import Data
from core.kprior.memory.memory import MemoryChoice, MemoryPolicy
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import Spec
from core.kprior.model.tree_leaves import Leaves
from core.kprior.model.tree_splits import LeafEncoder
from core.kprior.passes.cost import Cost
from core.kprior.passes.moments import fit_encoder
from core.kprior.passes.partitioned import head_of
from core.kprior.solvers import SolverError, Training
from core.kprior.state import State
from core.kprior.state.measurement import measure

SAMPLED_ROWS = 8_192
"""Rows of an estimated Hessian, a few times as many as a dense model has weights."""


def adopt(
    spec: Spec,
    w: Tensor,
    data: Data,
    count: int,
    *,
    units: tuple[Tensor, Tensor] | Mapping[str, Tensor] | None = None,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    device: torch.device | str = "cpu",
) -> Result:
    """The state of a model at given weights, which need not be an optimum: the state includes their gradient.

    Parameters
    ----------
    spec
        {"input": ..., "target": ..., "architecture": ..., "regularizer": ...}.
    w
        (P,) the weights, in the order of `Predictor`.
    data
        All examples that the model represents.
    count
        Number of these examples.
    units
        Mean and scale of the number columns of a table, which the weights refer to; by default, those of the data,
        which takes one more pass. For trees, the splits that the weights belong to, by name. For a network with
        buffers or frozen parameters: these, by their names in torch; by default, as the architecture builds them.
    training
        Its seed is used for random selections.
    policy
        How many examples the state remembers, and which.
    device
        The device of the model.

    Returns
    -------
    Result
        The state at these weights, the rows of its memory, the cost and, for a dense GLM, a certificate.

    Raises
    ------
    ValueError
        If the weights or units do not fit the model, or there are no rows.
    SolverError
        If the examples have no finite loss at these weights.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, adopt, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> data = [Examples(torch.arange(6), x, 3 * x + 1)]
    >>> found = adopt(spec, torch.tensor([2.8, 1.4]), data, 6)  # a retrain gives 2.8378 and 1.4054
    >>> found.cost.data_passes, 0.038 < found.certificate.bound < 0.2
    (1, True)
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    cost = Cost()
    with cost.timed():
        predictor = Predictor(spec, training.seed, device)
        w = check_weights(predictor, w)
        if isinstance(units, Mapping):
            (set_splits if isinstance(predictor.encoder, LeafEncoder) else set_buffers)(predictor, units)
        elif units is not None:
            set_units(predictor, *units)
        elif predictor.encoder.state_dict():
            fit_encoder(predictor.encoder, data)
            cost.data_passes += 1
        regularizer = regularizer_of(spec["regularizer"], predictor)
        w = without_shift(w, shift_directions(predictor, regularizer.delta))
        dense = predictor.linear and not is_wide(predictor)
        # the leverages of leaves cost less than comparing two Hessians of this size
        sampled = dense and not isinstance(predictor.body, Leaves)
        near = sample_hessian(predictor, regularizer, w, data, count) if sampled else None
        choice = MemoryChoice(policy, policy.size(count), training.seed)
        measured = measure(predictor, regularizer, w, data, choice, "full" if dense else None, cost, near)
        if measured.count == 0:
            raise ValueError("There are no examples to measure the weights on.")
        if not measured.anchor.finite:
            raise SolverError("The examples have no finite loss at these weights. Do the weights belong to this model?")
        found = (measured.anchor, measured.memory, measured.count, measured.surrogate, measured.last_layer)
        state = State(predictor, regularizer, spec["regularizer"].copy(), w, *found)
        bounded = is_dense(state) and measured.anchor.smallest > 0
        certificate = certify_anchored(state, measured.rows) if bounded else None
    return Result(state, measured.rows, cost, True, certificate)


def check_weights(predictor: Predictor, w: Tensor) -> Tensor:
    """The weights in the predictor's precision; raises ValueError if they do not fit it."""
    if w.shape != (predictor.size,):
        raise ValueError(f"This model has {predictor.size} weights, but {w.numel()} were given.")
    w = w.to(predictor.device, predictor.dtype)
    if not bool(w.isfinite().all()):
        raise ValueError("A weight is not a finite number.")
    return w


def set_splits(predictor: Predictor, splits: Mapping[str, Tensor]) -> None:
    """Set the splits of trees; raises ValueError if they do not fit."""
    assert isinstance(predictor.encoder, LeafEncoder)
    predictor.encoder.set_splits(splits)


def set_buffers(predictor: Predictor, buffers: Mapping[str, Tensor]) -> None:
    """Set what is frozen in a network's body; raises ValueError if a name is unknown or a shape differs."""
    wanted = {n.removeprefix("body."): t for n, t in predictor.constants().items() if n.startswith("body.")}
    if wanted.keys() != buffers.keys():
        raise ValueError(f"The buffers must be {', '.join(wanted) or 'none'}; {', '.join(buffers)} were given.")
    for name, tensor in wanted.items():
        if buffers[name].shape != tensor.shape or not bool(buffers[name].isfinite().all()):
            raise ValueError(f"The buffer {name} must have the shape {tuple(tensor.shape)} and finite numbers.")
        tensor.copy_(buffers[name])


def set_units(predictor: Predictor, mean: Tensor, scale: Tensor) -> None:
    """Set the units of the number columns of a table; raises ValueError if they do not fit."""
    encoder = predictor.encoder
    if not isinstance(encoder, TableEncoder):
        raise ValueError("Only the number columns of a table have units.")
    if mean.shape != encoder.mean.shape or scale.shape != encoder.scale.shape:
        raise ValueError(f"Units must be given for each of the {len(encoder.mean)} number columns.")
    if not bool(mean.isfinite().all()) or not bool((scale > 0).all()) or not bool(scale.isfinite().all()):
        raise ValueError("Means must be finite, and scales must be finite and above 0.")
    encoder.mean.copy_(mean)
    encoder.scale.copy_(scale)


def sample_hessian(predictor: Predictor, regularizer: L2, w: Tensor, data: Data, count: int) -> Tensor | None:
    """An estimate of the Hessian from some rows; without it, leverages would take a pass of their own."""
    some = head_of(data, SAMPLED_ROWS)
    if some is None:
        return None
    phi = predictor.features(some.x)
    f = predictor.outputs(w, some.x)
    G = glm_hessian(phi, predictor.family, f, predictor.weigh(some), some.y.to(f)) * (count / len(some))
    return G + torch.diag(regularizer.delta) if bool(G.isfinite().all()) else None
