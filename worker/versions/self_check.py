"""The self-check before a version is recorded: the stored file must predict what the worker measured.

A version consists of its weights. A module with other state, such as the running means of a BatchNorm layer, predicts
well in the worker that trained it and badly wherever its file is loaded.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from core.errors import Conflict
from core.inference.loaded_model import LoadedModel
from core.kprior import State
from core.kprior.model.target_scale import from_fitted
from core.kprior.passes.partitioned import head_of
from core.versions.store import StoredFile
from worker.versions.snapshot import ModelSnapshot

ROWS = 64
TOLERANCE, NETWORK_TOLERANCE = 1e-3, 1e-2
"""Largest difference, relative to the largest prediction. Linear models compute in double precision, networks in single
precision and perhaps on a GPU."""


def check_stored(snapshot: ModelSnapshot, state: State, stored: StoredFile) -> None:
    """Load a stored state as the service does, and compare its predictions with those of the state in memory.

    Raises Conflict if they differ.
    """
    x = choose_inputs(snapshot)
    if x is None:
        return
    with torch.inference_mode():
        fitted = state.predictor.family.mean(state.predictor.outputs(state.w, x)).double().cpu().numpy()
    measured = from_fitted(state.spec["target"], fitted)
    loaded = State.from_bytes(snapshot.context.store.get(stored.file, stored.sha256))
    served = LoadedModel.from_state(loaded).predict_means(x.numpy())
    tolerance = TOLERANCE if state.predictor.linear else NETWORK_TOLERANCE
    finite = np.abs(measured[np.isfinite(measured)])
    largest = float(finite.max()) if len(finite) else 0.0
    same = np.isclose(served, measured, rtol=tolerance, atol=tolerance * largest + 1e-9, equal_nan=True).all(1)
    if not same.all():
        raise Conflict(
            "self_check_failed",
            f"The stored version predicts other values than the trained one for {int((~same).sum())} of {len(x)} "
            "examples, so it was not recorded. The architecture has state besides its parameters, or is built "
            "differently each time. For example, replace BatchNorm layers by LayerNorm or GroupNorm.",
        )


def choose_inputs(snapshot: ModelSnapshot) -> Tensor | None:
    """(n, ...) raw inputs of holdout examples, or of training examples if there is no holdout."""
    for data in (snapshot.holdout, snapshot.in_force()):
        if (some := head_of(data, ROWS)) is not None:
            return some.x
    return None
