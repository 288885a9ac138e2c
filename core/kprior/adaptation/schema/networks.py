"""Networks whose first or last layer changes with the input or the target."""

import torch
from torch import Tensor

from core.kprior.adaptation.schema.untransferable import Untransferable
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Examples
from core.kprior.memory.memory import remember
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.transfer import layers_of
from core.kprior.state import State
from core.kprior.state.anchor import Anchor


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
    """A network with another first layer (inputs) or last layer (classes); all other layers stay."""
    if new.spec["architecture"]["kind"] != "mlp" and columns is not None:
        raise Untransferable("only the first layer of an mlp can be mapped to other columns")
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
                raise Untransferable("its layers cannot be mapped to the new columns or classes")
            b[name].copy_(values)
    anchor = Anchor(w, torch.zeros_like(w), None)
    order = torch.argsort(rows.key.cpu())
    found = order[torch.searchsorted(rows.key.cpu()[order], state.memory.key)]
    kept = rows.take(found) if len(rows) else rows
    memory = remember(new, w, kept, state.memory.weight, state.memory.generation)
    return State(new, regularizer, state.regularizer_spec, w, anchor, memory, state.count, surrogate)
