"""Adaptation's edges: mistakes of the caller, empty tasks, changes that change nothing, memory chosen anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.reselection import reselect
from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    MemoryPolicy,
    RemoveData,
    Result,
    Select,
    Training,
    adapt,
    draw_from,
    train,
)
from core.kprior.training.training import Predecessor
from tests.core.kprior import oracles
from tests.core.kprior.adaptation.cases import many_deltas
from tests.core.kprior.problems import (
    EVERYTHING,
    LINEAR,
    LOSSES,
    QUADRATIC,
    TENTH,
    examples_of,
    l2,
    relative_distance,
    rows,
    spec_of,
    stop_at,
)

MLP = {"kind": "mlp", "hidden": [5]}
SHORT = Training(max_epochs=3, budget=500)
DRAW = draw_from(examples_of("binary", 120, 4))
MODELS = pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC, MLP], ids=["linear", "quadratic", "mlp"])


def base_of(architecture: dict[str, Any] = LINEAR, policy: MemoryPolicy = TENTH, kind: str = "binary") -> Result:
    return train(spec_of(kind, 4, architecture), examples_of(kind, 120, 4).chunks(50), policy=policy, training=SHORT)


def test_example_added_and_removed_at_once_is_refused() -> None:
    base = base_of()
    some = rows(examples_of("binary", 120, 4), 0, 3)
    with pytest.raises(ValueError, match="both added and removed"):
        adapt(base.state, base.memory, [AddData([some]), RemoveData([some])])


def test_example_removed_twice_is_refused() -> None:
    base = base_of()
    some = rows(examples_of("binary", 120, 4), 0, 3)
    with pytest.raises(ValueError, match="removed twice"):
        adapt(base.state, base.memory, [RemoveData([some]), RemoveData([some])])


def test_example_that_is_remembered_cannot_be_added_again() -> None:
    """Its key would stand for two rows, and a later removal for either."""
    base = base_of()
    again = replace(base.memory, y=1 - base.memory.y)
    with pytest.raises(ValueError, match="already"):
        adapt(base.state, base.memory, [AddData([again])])


def test_data_that_can_be_read_only_once_are_refused_not_forgotten() -> None:
    """A generator is empty the second time: better an error than a model that never saw its examples."""
    base = base_of()
    new = examples_of("binary", 40, 4, seed=5, first_key=1000)
    once = (chunk for chunk in new.chunks(10))
    with pytest.raises(ValueError, match="more than once"):
        adapt(base.state, base.memory, [AddData(once)], policy=TENTH)


@MODELS
@pytest.mark.parametrize("tasks", ["none", "add nothing", "add no rows", "remove nothing", "remove no rows"])
def test_nothing_to_do_keeps_the_model(architecture: dict[str, Any], tasks: str) -> None:
    base = base_of(architecture)
    empty = rows(base.memory, 0, 0)
    given = {
        "none": [],
        "add nothing": [AddData([])],
        "add no rows": [AddData([empty])],
        "remove nothing": [RemoveData([])],
        "remove no rows": [RemoveData([empty])],
    }[tasks]
    adapted = adapt(base.state, base.memory, given, policy=TENTH, training=SHORT, draw=DRAW)  # type: ignore[arg-type]
    assert adapted.state.count == 120
    gap = relative_distance(adapted.state, base.state.w)
    assert gap < (1e-6 if base.state.predictor.linear else 0.2)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC], ids=["linear", "quadratic"])
def test_change_to_the_same_model_changes_nothing(kind: str, architecture: dict[str, Any]) -> None:
    """A spec that is sent again must not cost the curvature of the past."""
    base = base_of(architecture, kind=kind)
    new = AddData([examples_of(kind, 20, 4, seed=5, first_key=1000)])
    plain = adapt(base.state, base.memory, [new], policy=TENTH)
    changed = adapt(base.state, base.memory, [new, ChangeModel(dict(architecture))], policy=TENTH)
    assert relative_distance(changed.state, plain.state.w) < 1e-6


def test_last_of_several_changes_holds() -> None:
    base = base_of(policy=EVERYTHING)
    tasks = [ChangeRegularizer(l2(d)) for d in (9.0, 3.0)] + [ChangeModel(QUADRATIC), ChangeModel(LINEAR)]
    plain = adapt(base.state, base.memory, [ChangeRegularizer(l2(3.0))], policy=EVERYTHING)
    adapted = adapt(base.state, base.memory, tasks, policy=EVERYTHING)
    assert adapted.state.spec == plain.state.spec
    assert relative_distance(adapted.state, plain.state.w) < 1e-8


def test_deltas_per_parameter_cannot_outlive_their_parameters() -> None:
    data = examples_of("binary", 60, 4)
    base = train(spec_of("binary", 4, regularizer=many_deltas("binary", LINEAR)), [data], policy=TENTH)
    with pytest.raises(ValueError, match="one per parameter"):
        adapt(base.state, base.memory, [ChangeModel(QUADRATIC)])
    adapted = adapt(base.state, base.memory, [ChangeModel(QUADRATIC), ChangeRegularizer(l2(1.0))])
    assert adapted.state.spec["regularizer"] == l2(1.0)


@pytest.mark.parametrize("architecture", [QUADRATIC, MLP], ids=["quadratic", "mlp"])
def test_more_classes_than_inputs_are_no_trouble(architecture: dict[str, Any]) -> None:
    data = examples_of("classes", 80, 1)
    base = train(spec_of("classes", 1, architecture), data.chunks(50), policy=EVERYTHING, training=SHORT)
    adapted = adapt(base.state, base.memory, [ChangeModel(LINEAR)], policy=EVERYTHING)
    assert bool(adapted.state.w.isfinite().all())


@pytest.mark.parametrize("size", [1.0, 10.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_base_that_is_sure_of_everything_still_leads_to_the_retrain(kind: str, size: float) -> None:
    """Where every prediction is certain the curvature is lost in rounding, and a Newton step leads astray."""
    data = examples_of(kind, 100, 3)
    label = (data.x[:, 0] > 0) if kind == "binary" else (1.5 * data.x[:, 0] + 1.5).clamp(0, 2).long()
    y = label[:, None].double() if kind == "binary" else torch.nn.functional.one_hot(label, 3).double()
    data = replace(data, y=y)
    base = train(spec_of(kind, 3, regularizer=l2(1e-3)), [data], policy=EVERYTHING).state
    state, memory = stop_at(base, data, size * base.w)
    adapted = adapt(state, memory, [ChangeRegularizer(l2(5.0))], policy=EVERYTHING)
    truth = oracles.retrain(spec_of(kind, 3, regularizer=l2(5.0)), data)
    assert relative_distance(adapted.state, truth) < 1e-6


@MODELS
def test_mistaken_specs_are_refused_before_any_work(architecture: dict[str, Any]) -> None:
    base = base_of(architecture)
    for task in (
        ChangeModel({"kind": "linear", "degree": 0}),
        ChangeModel({"kind": "oracle"}),
        ChangeRegularizer({"kind": "l2", "delta": -1.0}),
        ChangeRegularizer({"kind": "l2", "delta": [1.0, 2.0]}),
    ):
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            adapt(base.state, base.memory, [task])


@MODELS
def test_adaptation_reads_no_past_and_counts_what_it_does(architecture: dict[str, Any]) -> None:
    base = base_of(architecture)
    new = examples_of("binary", 20, 4, seed=5, first_key=1000)
    adapted = adapt(base.state, base.memory, [AddData([new])], policy=TENTH, training=SHORT, draw=DRAW)
    assert base.cost.data_passes > 0
    assert adapted.cost.data_passes == 0
    assert adapted.cost.backward_passes >= len(new) + len(base.memory)
    assert adapted.cost.seconds > 0
    assert adapted.state.memory.generation == 1
    assert 12 <= len(adapted.state.memory) <= TENTH.size(140)


@MODELS
@pytest.mark.parametrize("select", [Select.AUTO, Select.CURVATURE, Select.RANDOM, Select.COVERAGE])
def test_memory_can_be_selected_again_by_a_pass(architecture: dict[str, Any], select: Select) -> None:
    base = base_of(architecture)
    data = examples_of("binary", 120, 4)
    policy = MemoryPolicy(fraction=0.3, select=select)
    again = reselect(base.state, data.chunks(31), policy, seed=4)
    assert torch.equal(again.state.w, base.state.w)
    assert len(again.state.memory) == len(again.memory) == 36
    assert again.state.memory.generation == 1
    assert again.cost.data_passes == 1
    assert again.cost.forward_passes + again.cost.backward_passes == 120
    options = {"policy": policy, "training": SHORT, "draw": DRAW}
    adapted = adapt(again.state, again.memory, [ChangeRegularizer(l2(2.0))], **options)
    assert adapted.state.count == 120
    whole = reselect(base.state, data.chunks(31), EVERYTHING)
    assert bool((whole.state.memory.weight == 1).all())


def test_encoder_of_the_base_is_kept() -> None:
    """An adapted model and the retrain it is compared with mean the same by a weight."""
    columns = [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}]
    data = examples_of("binary", 80, 2)
    data = replace(data, x=5 * data.x + 100)
    spec = {**spec_of("binary", 2), "input": {"kind": "table", "columns": columns}}
    base = train(spec, [rows(data, 0, 60)], policy=EVERYTHING)
    adapted = adapt(base.state, base.memory, [AddData([rows(data, 60, 80)])], policy=EVERYTHING)
    retrain = train(spec, [data], predecessor=Predecessor(base.state))
    assert relative_distance(adapted.state, retrain.state.w) < 1e-6
    quadratic = adapt(base.state, base.memory, [ChangeModel(QUADRATIC)], policy=EVERYTHING).state
    for after in (adapted.state, retrain.state, quadratic):
        buffers = after.predictor.encoder.state_dict()
        assert all(torch.equal(v, buffers[k]) for k, v in base.state.predictor.encoder.state_dict().items())
