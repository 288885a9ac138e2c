"""Whether a model can be built: what its spec alone does not tell."""

from __future__ import annotations

import torch

from core.errors import Invalid
from core.kprior import Predictor
from core.kprior.model.spec import Spec


def check_buildable(spec: Spec, max_parameters: int) -> None:
    """Invalid, if the engine could not build the model or its weights are more than an operator allows."""
    # shapes without memory; other people's networks may need the real thing
    device = "cpu" if spec["architecture"]["kind"] == "plugin" else "meta"
    try:
        with torch.device(device):
            size = Predictor(spec, device=device).size
    except (ValueError, RuntimeError) as error:
        raise Invalid.at(("architecture",), "spec_invalid", str(error)) from error
    if size > max_parameters:
        message = f"{size} weights; {max_parameters} are allowed here"
        raise Invalid.at(("architecture",), "model_too_large", message)
    delta = spec["regularizer"]["delta"]
    if isinstance(delta, list) and len(delta) != size:
        message = f"must be one number or {size} of them, one for each weight"
        raise Invalid.at(("regularizer", "delta"), "spec_invalid", message)
