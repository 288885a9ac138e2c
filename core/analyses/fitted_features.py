"""Features that were fitted on the examples of a model: without an example, they would not be what they are."""

from collections.abc import Sequence
from typing import Any

from core.kprior.model.spec import Spec, frozen_encoder


def has_fitted_features(spec: Spec) -> bool:
    """Whether leave-one-out and cross-validated metrics of a model would look far too good.

    Of the steps of an imported pipeline, this holds for the means of a target encoder. The others do not see targets.

    >>> table = {"values": [0.25, 0.75], "unseen": 0.5}
    >>> given = {"kind": "table", "transform": {"steps": [{"kind": "lookup", "inputs": [table]}]}}
    >>> has_fitted_features({"input": given, "architecture": {"kind": "linear"}})
    True
    """
    encoder = frozen_encoder(spec)
    steps: Any = spec["input"].get("transform")
    if spec["architecture"]["kind"] == "trees" or (encoder is not None and encoder.get("trained_on") == "examples"):
        return True
    return bool(steps) and steps.get("trained_on") != "other" and looks_up_means(steps["steps"])


def looks_up_means(steps: Sequence[Any]) -> bool:
    """Whether a step replaces categories by numbers other than codes, which are whole."""
    for step in steps:
        if step["kind"] == "lookup" and any(value % 1 for table in step["inputs"] for value in table["values"]):
            return True
        if step["kind"] == "parts" and any(looks_up_means(part.get("steps", ())) for part in step["parts"]):
            return True
    return False
