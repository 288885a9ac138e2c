"""Removed examples: gone from the state, and without influence but through the removal itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Cost,
    Examples,
    MemoryPolicy,
    RemoveData,
    Select,
    State,
    Training,
    adapt,
    train,
)
from core.kprior.training import summarise
from tests.core.kprior.changes import Change, all_changes
from tests.core.kprior.problems import (
    EVERYTHING,
    FAMILIES,
    LINEAR,
    QUADRATIC,
    TENTH,
    examples_of,
    l2,
    rows,
    spec_of,
    without,
)

MLP = {"kind": "mlp", "hidden": [6]}
SHORT = Training(max_epochs=4)
MODELS = pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC, MLP], ids=["linear", "quadratic", "mlp"])


def distinctive(kind: str, n: int) -> Examples:
    """Rows whose keys cannot be mistaken for anything else in a file."""
    data = examples_of(kind, n, 3)
    return replace(data, key=data.key * 7_919_000_007 + 1_234_567_891_011)


@MODELS
@pytest.mark.parametrize("select", list(Select))
def test_removed_keys_are_in_no_memory_and_in_no_bytes(architecture: dict[str, object], select: Select) -> None:
    data = distinctive("binary", 90)
    curvature = "diagonal" if architecture is MLP and select is Select.LEVERAGE else "auto"
    policy = MemoryPolicy(fraction=0.4, select=select)
    trained = train(
        spec_of("binary", 3, architecture), data.chunks(40), policy=policy, training=SHORT, curvature=curvature
    )
    gone = trained.memory.take(torch.arange(0, len(trained.memory), 2))
    before = trained.state.to_bytes()
    assert all(key.to_bytes(8, "little", signed=True) in before for key in gone.key.tolist())
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=policy, training=SHORT)
    after = adapted.state.to_bytes()
    assert not any(key.to_bytes(8, "little", signed=True) in after for key in gone.key.tolist())
    assert not set(gone.key.tolist()) & set(adapted.memory.key.tolist())
    assert trained.state.to_bytes() == before  # the version before is what it was


COMPLETE = [
    pytest.param(change, id="-".join((change.kind, change.model, change.data)).replace(" ", "_"))
    for kind in FAMILIES
    for change in all_changes(kind)
    if change.penalty == "other delta"
]


@pytest.mark.parametrize("change", COMPLETE)
def test_full_memory_leaves_the_state_of_a_retrain(change: Change) -> None:
    """Not the weights alone: gradient, curvature, soft labels, sums. So the next task starts as from a retrain."""
    state, memory = change.start(early=True)
    adapted = adapt(state, memory, change.tasks(), policy=EVERYTHING).state
    data = change.retained
    there = summarise(
        adapted.predictor, adapted.regularizer, adapted.w, data.chunks(50), len(data), EVERYTHING, "full", Cost()
    )
    scale = 1 + float(there.curvature.dense(adapted.predictor.size).norm()) if there.curvature else 1.0
    torch.testing.assert_close(adapted.gradient, there.gradient, rtol=0, atol=1e-9 * scale)
    assert adapted.curvature is not None
    assert there.curvature is not None
    size = adapted.predictor.size
    torch.testing.assert_close(adapted.curvature.dense(size), there.curvature.dense(size), rtol=1e-6, atol=1e-9 * scale)
    assert torch.equal(adapted.memory.key, there.memory.key)
    torch.testing.assert_close(adapted.memory.soft, there.memory.soft)
    torch.testing.assert_close(adapted.memory.weight, torch.ones_like(adapted.memory.weight))
    assert (adapted.surrogate is None) == (there.surrogate is None)
    if adapted.surrogate is not None and there.surrogate is not None:
        for name, value in vars(there.surrogate).items():
            ours = getattr(adapted.surrogate, name)
            assert float((ours - value).norm()) <= 1e-6 * float(value.norm()), f"surrogate.{name}"


@MODELS
def test_what_happens_to_removed_rows_later_changes_nothing(architecture: dict[str, object]) -> None:
    data = examples_of("classes", 120, 3)
    trained = train(spec_of("classes", 3, architecture), data.chunks(50), policy=TENTH, training=SHORT)
    results = []
    for spoil in (False, True):
        gone = Examples(data.key[:15].clone(), data.x[:15].clone(), data.y[:15].clone())
        adapted = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=TENTH, training=SHORT)
        if spoil:
            for tensor in (gone.key, gone.x, gone.y):
                tensor.fill_(77)
        again = adapt(adapted.state, adapted.memory, [ChangeRegularizer(l2(2.0))], policy=TENTH, training=SHORT)
        results.append(again.state.to_bytes())
    assert results[0] == results[1]


def removed_then(data: Examples, policy: MemoryPolicy) -> State:
    base, new = rows(data, 0, 100), rows(data, 100, 120)
    trained = train(spec_of("binary", 3), base.chunks(50), policy=policy)
    gone = rows(base, 0, 20)
    step = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=policy)
    return adapt(step.state, step.memory, [AddData([new])], policy=policy).state


def test_labels_of_removed_rows_are_forgotten() -> None:
    """With all in memory, whatever the removed rows said, what is left is the same."""
    data = examples_of("binary", 120, 3)
    other = replace(data, y=data.y.clone(), x=data.x.clone())
    other.y[:20] = 1 - other.y[:20]
    other.x[:20] *= -3
    first, second = removed_then(data, EVERYTHING), removed_then(other, EVERYTHING)
    torch.testing.assert_close(first.w, second.w, rtol=1e-8, atol=1e-10)
    never = train(spec_of("binary", 3), without(data, rows(data, 0, 20)).chunks(50), policy=EVERYTHING).state
    torch.testing.assert_close(first.w, never.w, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", FAMILIES)
def test_removal_undoes_an_addition(kind: str) -> None:
    data = examples_of(kind, 120, 3)
    base, new = rows(data, 0, 100), rows(data, 100, 120)
    trained = train(spec_of(kind, 3), base.chunks(50), policy=EVERYTHING)
    there = adapt(trained.state, trained.memory, [AddData([new])], policy=EVERYTHING)
    back = adapt(there.state, there.memory, [RemoveData([new])], policy=EVERYTHING)
    torch.testing.assert_close(back.state.w, trained.state.w, rtol=1e-8, atol=1e-9)
    assert torch.equal(back.state.memory.key, trained.state.memory.key)


@MODELS
def test_removal_together_with_a_new_model_leaves_no_key(architecture: dict[str, object]) -> None:
    data = examples_of("binary", 100, 3)
    trained = train(spec_of("binary", 3, architecture), [data], policy=TENTH, training=SHORT)
    gone = trained.memory.take(torch.arange(4))
    new = MLP if architecture is LINEAR else LINEAR
    tasks = [RemoveData([gone]), ChangeModel(new)]
    adapted = adapt(trained.state, trained.memory, tasks, policy=TENTH, training=SHORT)
    assert adapted.state.count == 96
    assert not set(gone.key.tolist()) & set(adapted.state.memory.key.tolist())
