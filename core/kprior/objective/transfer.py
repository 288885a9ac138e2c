"""The parts of the old model that the new one uses when the architecture changes."""

from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.model.architectures import Linear
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import Architecture
from core.kprior.objective.tasks import TaskSet
from core.kprior.state import State


def new_predictor(old: Predictor, architecture: Architecture, seed: int) -> Predictor:
    """The same input, target and encoder with another architecture."""
    new = Predictor({**old.spec, "architecture": architecture}, seed, old.device)
    if isinstance(old.body, Linear) and isinstance(new.body, Linear) and old.body.monomials == new.body.monomials:
        return old
    if old.spec["architecture"] == architecture:
        return old
    if "trees" in (old.spec["architecture"]["kind"], architecture["kind"]):
        raise ValueError("The splits of trees must be learnt from all examples. Retrain the model.")
    new.encoder.load_state_dict(old.encoder.state_dict())
    return new


def new_regularizer(state: State, task_set: TaskSet, new: Predictor) -> L2:
    """The regularizer after the change. One delta per parameter is only valid for the same parameters."""
    if task_set.regularizer is not None:
        kept = state.regularizer.linear if new is state.predictor else None
        return replace(regularizer_of(task_set.regularizer, new), linear=kept)
    if new is state.predictor:
        return state.regularizer
    return regularizer_of(state.regularizer_spec, new)


def shared_parameters(old: Predictor, new: Predictor) -> tuple[Tensor, Tensor] | None:
    """Indices of the weights that both models have, in the new and in the old one (A w* of the paper, Eq. 22), or
    None."""
    if new is old:
        every = torch.arange(new.size, device=new.device)
        return every, every
    if not old.linear or not new.linear:
        return None
    K = new.family.outputs
    before, after = old.size // K, new.size // K
    pairs = [(after - 1, before - 1)]  # the constant, which all architectures have
    if isinstance(old.body, Linear) and isinstance(new.body, Linear):
        where = {m: i for i, m in enumerate(old.body.monomials)}
        pairs = [(i, where[m]) for i, m in enumerate(new.body.monomials) if m in where]
    a = torch.tensor([p[0] for p in pairs], device=new.device)
    b = torch.tensor([p[1] for p in pairs], device=new.device)
    rows = torch.arange(K, device=new.device)[:, None]
    return (rows * after + a).reshape(-1), (rows * before + b).reshape(-1)


def transplant(state: State, new: Predictor, start: Tensor | None = None) -> Tensor:
    """The initial weights (P,) of a new network: those of the old one, as far as they fit.

    If every layer only grows, all of them fit, and the new units have no effect at first. Otherwise the leading layers
    fit, up to the first that differs; a linear model has no weights for a network. Weights that do not fit have the
    values of `start`, or random ones.
    """
    old, w = state.predictor, new.initial_weights() if start is None else start.clone()
    if new is old:
        return state.w.clone()
    if old.linear or new.linear:
        return w
    theirs, ours = layers_of(old, state.w), layers_of(new, w)
    if len(theirs) == len(ours) and all(grows(a, b) for a, b in zip(theirs, ours, strict=True)):
        for a, b in zip(theirs, ours, strict=True):
            rows, columns = a["weight"].shape[:2]
            b["weight"][:rows, columns:] = 0
            b["weight"][:rows, :columns] = a["weight"]
            if "bias" in a:
                b["bias"][:rows] = a["bias"]
        return w
    for a, b in zip(theirs, ours, strict=False):
        if {n: t.shape for n, t in a.items()} != {n: t.shape for n, t in b.items()}:
            break
        for name, values in a.items():
            b[name].copy_(values)
    return w


def layers_of(predictor: Predictor, w: Tensor) -> list[dict[str, Tensor]]:
    """The parameters of each layer, as views of the weights."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, values in predictor.unflatten(w).items():
        layer, _, parameter = name.rpartition(".")
        found.setdefault(layer, {})[parameter] = values
    return list(found.values())


def grows(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether layer b is at least as large as layer a; only fully connected layers can grow."""
    if set(a) != set(b) or not set(a) <= {"weight", "bias"} or "weight" not in a:
        return False
    old, new = a["weight"].shape, b["weight"].shape
    if len(old) != len(new) or len(old) < 2:
        return False
    return old == new or (len(old) == 2 and old[0] <= new[0] and old[1] <= new[1])
