"""Changes of the input and the target: the retrain on the converted rows is the truth, and the bound covers it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.kprior import (
    AddData,
    ChangeInput,
    ChangeRegularizer,
    ChangeTarget,
    Examples,
    MemoryPolicy,
    RemoveData,
    Result,
    State,
    adapt,
    draw_from,
    refine,
    train,
)
from core.kprior.adaptation.schema import Untransferable, change_schema
from core.kprior.data.schema_conversion import Conversion, input_conversion, target_conversion
from core.kprior.training.training import Predecessor
from core.models.schema_changes import plain_part
from tests.core.kprior.oracles import newton, sklearn_fit
from tests.core.kprior.problems import KINKED

N, NEW, GONE = 600, 60, 30
ALL = MemoryPolicy(fraction=1.0, cap=10**6)
SOME = MemoryPolicy(fraction=0.1)
RIDGE = {"kind": "l2", "delta": 3.0, "penalize_bias": False}


def number(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "number", **more}


def category(name: str, *values: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "category", "values": list(values), "other": True, **more}


def table(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "table", "columns": list(columns)}


OLD = table(number("age"), category("plan", "free", "paid"), number("visits"))
GROWN = table(
    number("height", default=2.0),
    number("years", was="age"),
    category("plan", "free", "trial", "paid"),
    number("visits"),
    number("income"),
    category("land", "de", "fr", default="fr"),
)
SHRUNK = table(category("plan", "any", merge={"free": "any", "paid": "any"}), number("visits"))
TARGETS = {
    "binary": {"kind": "binary"},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
    "classes": {"kind": "classes", "values": ["a", "b", "c"]},
    "two classes": {"kind": "classes", "values": ["a", "b"]},
    "squared_hinge": {"kind": "binary"},
    "huber": {"kind": "number"},
}
ORACLES = [name for name in TARGETS if name != "two classes"]
"""Of two classes scikit-learn has one set of weights, and the softmax two."""


def spec_of(given: dict[str, Any], target: dict[str, Any], degree: int = 1) -> Any:
    architecture = {"kind": "linear", "degree": degree}
    regularizer = {"kind": "l2", "delta": 1.0, "penalize_bias": False}
    return {"input": given, "target": target, "architecture": architecture, "regularizer": regularizer}


def rows_of(given: dict[str, Any], n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for column in given["columns"]:
        if column["type"] == "number":
            values = 3 * torch.randn(n, generator=generator) + 1
            values[torch.rand(n, generator=generator) < 0.1] = torch.nan
        else:
            values = torch.randint(-1, len(column["values"]), (n,), generator=generator).float()
        parts.append(values)
    return torch.stack(parts, 1)


def targets_of(x: Tensor, kind: str, seed: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    f = x[:, -1].nan_to_num() / 4 + torch.randn(len(x), generator=generator)
    if kind == "classes":
        return torch.nn.functional.one_hot((f > -0.5).long() + (f > 0.7).long(), 3).double()
    if kind == "two classes":
        return torch.nn.functional.one_hot((f > 0).long(), 2).double()
    y = {"binary": f > 0, "number": f, "count": (f.exp() * 2).floor()}[kind]
    return y.double()[:, None]


class Case:
    """A change of the input with examples that come and go in the same job."""

    def __init__(self, kind: str, new: dict[str, Any], policy: MemoryPolicy, degree: int = 1) -> None:
        self.spec, self.conversion = spec_of(OLD, TARGETS[kind], degree), conversion_of(OLD, new)
        if kind in KINKED:
            self.spec["loss"] = {"kind": kind}
        kind = KINKED.get(kind, kind)
        x = rows_of(OLD, N, 1)
        y = targets_of(x, kind)
        self.base = train(self.spec, [Examples(torch.arange(N), x, y)], policy=policy)
        converted = Examples(torch.arange(N), torch.from_numpy(self.conversion(x.numpy())), y)
        xa = rows_of(new, NEW, 2)
        added = Examples(torch.arange(N, N + NEW), xa, targets_of(xa, kind, 3))
        removed, kept = converted.take(converted.key < GONE), converted.take(converted.key >= GONE)
        self.new: Any = {**self.spec, "input": plain_part(new)}  # type: ignore[typeddict-item]
        self.tasks = [AddData([added]), RemoveData([removed]), ChangeInput(self.new["input"], self.conversion)]
        self.data, self.policy = [kept, added], policy

    def adapt(self) -> Result:
        return adapt(self.base.state, self.base.memory, self.tasks, policy=self.policy)

    def truth(self, state: State, spec: Any = None) -> Tensor:
        """scikit-learn's weights on the converted rows, in the units of the state."""
        spec = spec or self.new
        phi = np.concatenate([state.predictor.features(chunk.x).numpy() for chunk in self.data])
        y = torch.cat([chunk.y for chunk in self.data]).numpy()
        if "loss" in spec:
            delta = np.append(np.full(phi.shape[1] - 1, spec["regularizer"]["delta"]), 0.0)
            return torch.from_numpy(newton(spec["loss"]["kind"], phi, y, delta).astype(np.float64))
        return torch.from_numpy(sklearn_fit(spec["target"]["kind"], phi, y, spec["regularizer"]["delta"], False))


def conversion_of(old: Any, new: Any) -> Conversion:
    found = input_conversion(old, new)
    assert found is not None
    return found


def distance(state: State, w: Tensor) -> float:
    return float((state.w - w).norm())


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("new", [GROWN, SHRUNK], ids=["grown", "shrunk"])
def test_with_all_rows_in_memory_other_columns_are_exact(kind: str, new: dict[str, Any]) -> None:
    case = Case(kind, new, ALL)
    state = case.adapt().state
    assert distance(state, case.truth(state)) <= 1e-5 * float(state.w.norm())


def test_products_of_columns_follow_too() -> None:
    case = Case("binary", GROWN, ALL, degree=2)
    state = case.adapt().state
    retrained = train(case.new, case.data, predecessor=Predecessor(state)).state
    assert distance(state, retrained.w) <= 1e-5 * float(state.w.norm())


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("new", [GROWN, SHRUNK], ids=["grown", "shrunk"])
def test_the_bound_covers_the_truth_after_other_columns(kind: str, new: dict[str, Any]) -> None:
    case = Case(kind, new, SOME)
    result = case.adapt()
    if result.certificate is not None:
        assert distance(result.state, case.truth(result.state)) <= result.certificate.bound + 1e-6
    found = refine(result.state, result.memory, case.data, tolerance=0.01, rounds=5)
    assert found.certificate.relative <= 0.01
    assert distance(found.state, case.truth(found.state)) <= found.certificate.bound + 1e-5


@pytest.mark.parametrize("kind", TARGETS)
def test_columns_that_come_are_certified_without_a_pass(kind: str) -> None:
    case = Case(kind, GROWN, SOME)
    result = adapt(case.base.state, case.base.memory, case.tasks[2:])
    assert result.certificate is not None
    assert (result.cost.data_passes, result.certificate.relative <= 1e-3) == (0, True)
    assert result.state.anchor.exact


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_a_column_and_its_first_rows_are_certified_without_a_pass(kind: str) -> None:
    n, new = 20_000, 200
    old, grown = (table(*(number(f"c{i}") for i in range(count))) for count in (8, 9))
    conversion = conversion_of(old, grown)
    generator = torch.Generator().manual_seed(0)
    x, come = torch.randn(n, 8, generator=generator), torch.randn(new, 9, generator=generator)
    before = Examples(torch.arange(n), x, targets_of(x, kind))
    base = train(spec_of(old, TARGETS[kind]), before.chunks(5000))
    added = Examples(torch.arange(n, n + new), come, targets_of((come[:, 7] + 4 * come[:, 8])[:, None], kind, 3))
    result = adapt(base.state, base.memory, [AddData([added]), ChangeInput(grown, conversion)])  # type: ignore[arg-type]
    assert result.certificate is not None
    assert (result.cost.data_passes, result.certificate.relative <= 0.01) == (0, True)
    data = [replace(before, x=torch.from_numpy(conversion(x.numpy()))), added]
    retrained = train(spec_of(grown, TARGETS[kind]), data, predecessor=Predecessor(result.state)).state
    assert distance(retrained, base_weights(base.state, retrained)) > 0.02 * float(retrained.w.norm())
    assert distance(result.state, retrained.w) <= result.certificate.bound


def base_weights(old: State, new: State) -> Tensor:
    """What doing nothing is: no weight for what is new, the last number and its flag."""
    K = new.predictor.family.outputs
    W = torch.zeros(K, new.predictor.size // K, dtype=torch.float64)
    before = old.w.view(K, -1)
    count = (before.shape[1] - 1) // 2
    W[:, :count], W[:, count + 1 : 2 * count + 1], W[:, -1] = before[:, :count], before[:, count:-1], before[:, -1]
    return W.reshape(-1)


def test_another_regularizer_in_the_same_change() -> None:
    case = Case("binary", GROWN, ALL)
    state = adapt(case.base.state, case.base.memory, [*case.tasks, ChangeRegularizer(RIDGE)], policy=ALL).state  # type: ignore[arg-type]
    assert distance(state, case.truth(state, {**case.new, "regularizer": RIDGE})) <= 1e-5 * float(state.w.norm())
    assert state.spec["regularizer"] == RIDGE


def test_new_columns_take_their_units_from_old_and_new_rows_together() -> None:
    case = Case("binary", GROWN, SOME)
    ours, theirs = case.adapt().state.predictor.encoder, train(case.new, case.data).state.predictor.encoder
    mine, fresh = dict(ours.named_buffers()), dict(theirs.named_buffers())
    places = [0, 3]  # height and income; the others keep what the first training gave them
    assert all(torch.equal(mine[name][places], fresh[name][places]) for name in mine)


def test_a_state_that_followed_can_be_stored_and_adapted_again() -> None:
    case = Case("classes", GROWN, SOME)
    first = case.adapt()
    state = State.from_bytes(first.state.to_bytes())
    newer = table(*plain_part(GROWN)["columns"], number("more"))  # type: ignore[typeddict-item]
    again = adapt(state, first.memory, [ChangeInput(newer, conversion_of(case.new["input"], newer))])  # type: ignore[arg-type]
    assert again.state.spec["input"] == newer


CLASS_CHANGES = {
    "added": (TARGETS["classes"], {"kind": "classes", "values": ["a", "b", "d", "c"]}),
    "merged": (TARGETS["classes"], {"kind": "classes", "values": ["a", "bc"], "merge": {"b": "bc", "c": "bc"}}),
    "binary": (TARGETS["binary"], {"kind": "classes", "values": [0, 1]}),
    "named": (TARGETS["binary"], {"kind": "classes", "values": ["yes", "no", "?"], "merge": {"0": "no", "1": "yes"}}),
}


class ClassCase:
    """A change of the target with examples of every class that come in the same job."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any], policy: MemoryPolicy) -> None:
        spec, codes = spec_of(OLD, old), target_conversion(old, new)  # type: ignore[arg-type]
        assert codes is not None
        x, xa = rows_of(OLD, N, 1), rows_of(OLD, NEW, 2)
        y = targets_of(x, old["kind"])
        self.base = train(spec, [Examples(torch.arange(N), x, y)], policy=policy)
        before = y.argmax(1) if y.shape[1] > 1 else y[:, 0].long()
        K = len(new["values"])
        now = torch.nn.functional.one_hot(torch.tensor(codes)[before].long(), K).double()
        ya = torch.nn.functional.one_hot(torch.arange(NEW) % K, K).double()
        added = Examples(torch.arange(N, N + NEW), xa, ya)
        self.target: Any = plain_part(new)  # type: ignore[arg-type]
        self.spec: Any = {**spec, "target": self.target}
        self.tasks = [AddData([added]), ChangeTarget(self.target, codes)]
        self.data = [Examples(torch.arange(N), x, now), added]
        self.result = adapt(self.base.state, self.base.memory, self.tasks, policy=policy)


@pytest.mark.parametrize("change", CLASS_CHANGES)
def test_with_all_rows_in_memory_other_classes_are_exact(change: str) -> None:
    case = ClassCase(*CLASS_CHANGES[change], ALL)
    state = case.result.state
    retrained = train(case.spec, case.data, predecessor=Predecessor(state)).state
    assert distance(state, retrained.w) <= 1e-5 * float(state.w.norm())


@pytest.mark.parametrize("change", CLASS_CHANGES)
def test_other_classes_are_certified_by_passes(change: str) -> None:
    case = ClassCase(*CLASS_CHANGES[change], SOME)
    found = refine(case.result.state, case.result.memory, case.data, tolerance=0.01, rounds=5)
    retrained = train(case.spec, case.data, predecessor=Predecessor(found.state)).state
    assert found.certificate.relative <= 0.01
    assert distance(found.state, retrained.w) <= found.certificate.bound + 1e-6


def test_a_class_added_to_many_rows_is_certified_by_one_pass_for_curvature() -> None:
    n, new, columns = 20_000, 300, table(*(number(f"c{i}") for i in range(6)))
    generator = torch.Generator().manual_seed(0)
    x, come = torch.randn(n, 6, generator=generator), torch.randn(new, 6, generator=generator)
    before = Examples(torch.arange(n), x, targets_of(x, "classes"))
    base = train(spec_of(columns, TARGETS["classes"]), before.chunks(5000))
    wider: Any = {"kind": "classes", "values": ["a", "b", "c", "d"]}
    classes = (come[:, 0] > 0.5).long() * 3 + (come[:, 0] <= 0.5).long() * targets_of(come, "classes").argmax(1)
    added = Examples(torch.arange(n, n + new), come, torch.nn.functional.one_hot(classes, 4).double())
    result = adapt(base.state, base.memory, [AddData([added]), ChangeTarget(wider, (0.0, 1.0, 2.0))])
    old = replace(before, y=torch.cat([before.y, torch.zeros(n, 1)], 1))
    data = [*old.chunks(5000), added]
    found = refine(result.state, result.memory, data, tolerance=0.01, rounds=5)
    retrained = train(spec_of(columns, wider), data, predecessor=Predecessor(found.state)).state
    assert distance(result.state, retrained.w) > 0.02 * float(retrained.w.norm())
    assert found.certificate.relative <= 0.01
    assert distance(found.state, retrained.w) <= found.certificate.bound
    assert (found.cost.data_passes, found.state.anchor.exact) == (3, True)  # two for the way, and one


def network_spec(given: dict[str, Any]) -> Any:
    return {**spec_of(given, TARGETS["classes"]), "architecture": {"kind": "mlp", "hidden": [8]}}


def test_a_network_predicts_the_same_for_old_rows() -> None:
    x = rows_of(OLD, 200, 1)
    rows = Examples(torch.arange(200), x, targets_of(x, "classes"))
    base = train(network_spec(OLD), [rows])
    conversion = conversion_of(OLD, GROWN)
    state, memory = change_schema(base.state, base.memory, [ChangeInput(plain_part(GROWN), conversion)])  # type: ignore[arg-type]
    before = base.state.predictor.outputs(base.state.w, x)
    after = state.predictor.outputs(state.w, torch.from_numpy(conversion(x.numpy())))
    assert torch.allclose(before, after, atol=1e-5)
    again = Examples(rows.key, torch.from_numpy(conversion(x.numpy())), rows.y)
    assert adapt(state, memory, [], draw=draw_from(again)).state.spec["input"] == state.spec["input"]
    wider: Any = {"kind": "classes", "values": ["a", "b", "c", "d"]}
    grown, _ = change_schema(base.state, base.memory, [ChangeTarget(wider, (0.0, 1.0, 2.0))])
    mean = grown.predictor.family.mean(grown.predictor.outputs(grown.w, x))
    assert torch.allclose(mean[:, :3], base.state.predictor.family.mean(before), atol=0.05)


def test_a_model_that_cannot_be_adapted_reports_it() -> None:
    spec = spec_of(OLD, TARGETS["binary"])
    x = rows_of(OLD, 50, 1)
    size = train(spec, [Examples(torch.arange(50), x, targets_of(x, "binary"))]).state.predictor.size
    spec["regularizer"] = {"kind": "l2", "delta": [1.0] * size}
    base = train(spec, [Examples(torch.arange(50), x, targets_of(x, "binary"))])
    task: Any = ChangeInput(plain_part(GROWN), conversion_of(OLD, GROWN))  # type: ignore[arg-type]
    with pytest.raises(Untransferable, match="a delta for each weight"):
        adapt(base.state, base.memory, [task])
