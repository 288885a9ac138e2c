"""Specs and policies: what is rejected before anything is built, and partial changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from core.errors import Invalid
from core.kprior import Select
from core.kprior.model.spec import Spec
from core.models.policy import (
    AdaptPolicy,
    ErasurePolicy,
    EvaluationPolicy,
    MemoryPolicySchema,
    Policy,
    RetrainPolicy,
    Tolerance,
    duration,
    patch,
)
from core.models.spec import (
    L2RegularizerSchema,
    LinearArchitectureSchema,
    MlpArchitectureSchema,
    PluginArchitectureSchema,
    SpecSchema,
)
from core.models.training_options import CertifiedRemovalSchema, TrainingSchema
from core.models.validation import check_buildable

VECTOR = {"kind": "vector", "dim": 3}
BINARY = {"kind": "binary"}
COLUMN = {"name": "age", "type": "number"}


def plain(**parts: Any) -> Spec:
    return SpecSchema.model_validate({"input": VECTOR, "target": BINARY, **parts}).plain()


def test_a_spec_needs_only_input_and_target() -> None:
    spec = plain()
    assert spec["architecture"] == {"kind": "linear", "degree": 1}
    assert spec["regularizer"] == {"kind": "l2", "delta": 1.0, "penalize_bias": False}
    check_buildable(spec, 4)


@pytest.mark.parametrize(
    "parts",
    [
        {"input": {"kind": "vector", "dim": 0}},
        {"input": {"kind": "vector", "dim": 3, "extra": 1}},
        {"input": {"kind": "image", "shape": [3, 32]}},
        {"input": {"kind": "image", "shape": [4096, 4096, 3]}},
        {"input": {"kind": "table", "columns": [COLUMN, COLUMN]}},
        {"input": {"kind": "table", "columns": [{**COLUMN, "name": "subject"}]}},
        {"input": {"kind": "table", "columns": [{**COLUMN, "name": "a\x00b"}]}},
        {"target": {"kind": "classes", "values": ["a"]}},
        {"target": {"kind": "classes", "values": [1, "1"]}},
        {"target": {"kind": "classes", "values": [True, False]}},
        {"architecture": {"kind": "lenet5"}},
        {"architecture": {"kind": "unheard-of"}},
        {"regularizer": {"kind": "l2", "delta": -1.0}},
        {"regularizer": {"kind": "l2", "delta": float("nan")}},
        {"regularizer": {"kind": "l2", "delta": [1.0, float("inf")]}},
    ],
    ids=str,
)
def test_invalid_specs_are_rejected(parts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        plain(**parts)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"architecture": {"kind": "mlp", "hidden": [100_000, 100_000]}}, "model_too_large"),
        ({"architecture": {"kind": "plugin", "name": "nobody-installed-it"}}, "spec_invalid"),
        ({"regularizer": {"kind": "l2", "delta": [1.0, 2.0]}}, "spec_invalid"),
    ],
    ids=["large", "plugin", "deltas"],
)
def test_a_model_that_cannot_be_built_is_rejected_beforehand(parts: dict[str, Any], code: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_buildable(plain(**parts), 1_000_000)
    assert refused.value.code == code


def transformed(steps: list[dict[str, Any]]) -> Spec:
    return plain(input={"kind": "table", "columns": [COLUMN], "transform": {"steps": steps, "features": ["one"]}})


def parts(*steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "parts", "parts": [{"inputs": [0], "steps": chain} for chain in steps]}


WIDE = {"kind": "one_hot", "inputs": [{"places": [0], "width": 10_000}]}
STEEP = {"breaks": [], "origins": [0.0], "coefficients": [[[1.0] * 100_000]]}
SELECT = parts([])


@pytest.mark.parametrize(
    "steps",
    [
        [parts(*[[WIDE]] * 10), SELECT],
        [parts(*[[WIDE, SELECT]] * 10), SELECT],
        [{"kind": "products", "of": [[]] * 100_000}, SELECT],
        [{"kind": "piecewise", "inputs": [STEEP]}],
        [{"kind": "parts", "parts": [{"inputs": [0] * 100_000, "steps": [{"kind": "products", "of": [[0]]}]}]}],
    ],
    ids=["parts", "inside parts", "products", "piecewise", "inputs"],
)
def test_steps_that_need_much_memory_for_a_row_are_rejected(steps: list[dict[str, Any]]) -> None:
    with pytest.raises(Invalid, match="more than 100000 numbers for a row"):
        check_buildable(transformed(steps), 1_000_000)


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "piecewise", "inputs": [{"breaks": [], "origins": [0.0], "coefficients": [[[]]]}]},
        {"kind": "parts", "parts": [{"inputs": [], "steps": [{"kind": "products", "of": [[]]}]}]},
    ],
    ids=["no coefficients", "no inputs"],
)
def test_steps_that_cannot_be_computed_are_rejected(step: dict[str, Any]) -> None:
    """Otherwise the model would be created, and each of its jobs would fail."""
    with pytest.raises(Invalid, match="coefficients|without inputs"):
        check_buildable(transformed([step]), 1_000_000)


def test_steps_may_be_wide_and_nested_within_limits() -> None:
    nested = SELECT
    for _ in range(9):
        nested = parts([nested])
    check_buildable(transformed([parts(*[[WIDE]] * 4), SELECT, nested]), 1_000_000)
    with pytest.raises(ValidationError, match="at most 10 `parts`"):
        transformed([parts([nested])])


def test_the_policy_offers_all_memory_selections_of_the_engine() -> None:
    assert get_args(MemoryPolicySchema.model_fields["select"].annotation) == tuple(Select)


def test_a_partial_policy_leaves_the_rest_alone() -> None:
    before = Policy().model_dump()
    after = patch(Policy(), {"adapt": {"every": "30s"}, "promote": "manual"})
    assert after.model_dump() == {**before, "promote": "manual", "adapt": {**before["adapt"], "every": "30s"}}
    assert patch(after, {}) == after
    assert patch(after, {"adapt": {"every": None}}).adapt.every is None


@pytest.mark.parametrize("change", [{"adapt": {"every": "often"}}, {"holdout": 1.0}, {"adapt": 5}, {"new": 1}], ids=str)
def test_a_change_that_makes_a_policy_invalid_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        patch(Policy(), change)
    assert refused.value.errors[0]["loc"][0] == "policy"


def test_durations_have_a_unit() -> None:
    assert [duration(t) for t in ("30s", "10m", "24h", "7d")] == [
        timedelta(seconds=30),
        timedelta(minutes=10),
        timedelta(hours=24),
        timedelta(days=7),
    ]
    for text in ("", "10", "m", "0s", "-1m", "1.5h", "1w", "١s", "99999d", " 1s"):
        with pytest.raises(ValueError, match="must"):
            duration(text)


PARTS = (
    TrainingSchema,
    CertifiedRemovalSchema,
    L2RegularizerSchema,
    LinearArchitectureSchema,
    MlpArchitectureSchema,
    PluginArchitectureSchema,
)
POLICIES = (MemoryPolicySchema, AdaptPolicy, RetrainPolicy, Tolerance, EvaluationPolicy, ErasurePolicy)


@pytest.mark.parametrize("part", [*PARTS, *POLICIES], ids=lambda part: part.__name__)
def test_every_field_has_a_description(part: type[BaseModel]) -> None:
    assert [name for name, field in part.model_fields.items() if name != "kind" and not field.description] == []
