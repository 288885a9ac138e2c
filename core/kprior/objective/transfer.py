"""What a new model takes over from the old one when the architecture changes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.model.architectures import Linear
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import Architecture
from core.kprior.objective.tasks import Change
from core.kprior.state import State


def new_predictor(old: Predictor, architecture: Architecture, seed: int) -> Predictor:
    """The same inputs and targets behind another architecture; the encoder is taken over."""
    new = Predictor({**old.spec, "architecture": architecture}, seed, old.device)
    if isinstance(old.body, Linear) and isinstance(new.body, Linear) and old.body.monomials == new.body.monomials:
        return old
    if old.spec["architecture"] == architecture:
        return old
    new.encoder.load_state_dict(old.encoder.state_dict())
    return new


def new_regularizer(state: State, change: Change, new: Predictor) -> L2:
    """The regularizer after the change; a delta per parameter cannot outlive its parameters."""
    if change.regularizer is not None:
        kept = state.regularizer.linear if new is state.predictor else None
        return replace(regularizer_of(change.regularizer, new), linear=kept)
    if new is state.predictor:
        return state.regularizer
    return regularizer_of(state.regularizer_spec, new)


def shared_parameters(old: Predictor, new: Predictor) -> tuple[Tensor, Tensor] | None:
    """Which weights of the new model are which of the old one's (A w* of the paper, Eq. 22); None if none are."""
    if new is old:
        every = torch.arange(new.size, device=new.device)
        return every, every
    if not old.linear or not new.linear:
        return None
    K = new.family.outputs
    before, after = old.size // K, new.size // K
    pairs = [(after - 1, before - 1)]  # the constant, of whatever features
    if isinstance(old.body, Linear) and isinstance(new.body, Linear):
        where = {m: i for i, m in enumerate(old.body.monomials)}
        pairs = [(i, where[m]) for i, m in enumerate(new.body.monomials) if m in where]
    a = torch.tensor([p[0] for p in pairs], device=new.device)
    b = torch.tensor([p[1] for p in pairs], device=new.device)
    rows = torch.arange(K, device=new.device)[:, None]
    return (rows * after + a).reshape(-1), (rows * before + b).reshape(-1)


def transplant(state: State, new: Predictor, start: Tensor | None = None) -> Tensor:
    """The weights with which a new network begins: the old one's, or what fits of them.

    Where every layer only grows, all of them fit, and the new units are silent at first; else the leading layers do,
    up to the first that differs.

    Parameters
    ----------
    state
        The old model.
    new
        The new one; a linear model gives a network nothing.
    start
        Where what does not fit begins; without it, at the seed's draw.

    Returns
    -------
    Tensor
        (P,) of the new network.
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
    """Whether a layer has all units of another, and at least as many; only fully connected ones can have more."""
    if set(a) != set(b) or not set(a) <= {"weight", "bias"} or "weight" not in a:
        return False
    old, new = a["weight"].shape, b["weight"].shape
    if len(old) != len(new) or len(old) < 2:
        return False
    return old == new or (len(old) == 2 and old[0] <= new[0] and old[1] <= new[1])
