"""Labelling: which inputs of a pool to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from core.analyses.analysed_model import AnalysedModel
from core.kprior import choose_batch


def report_labelling(
    model: AnalysedModel, x: torch.Tensor, ids: Sequence[str] | None, top: int
) -> tuple[dict[str, Any], int]:
    """The most informative inputs, by their ids or their places in the pool."""
    found = choose_batch(model.state, x, top, model.memory)
    rows = []
    for index, gain in zip(found.index.tolist(), found.gain.tolist(), strict=True):
        name = {"index": index} if ids is None else {"id": ids[index]}
        rows.append({**name, "gain": gain, "mean": model.describe_mean(found.mean[index].tolist())})
    return {"rows": rows, "pool": len(x), "estimate": model.is_estimate}, 0
