"""Networks that are adapted by drawn rows: they forget, stay as good, keep to their budget, and say what was measured.

No theorem holds, so the truth is a retrain's figures on scikit-learn's digits, with generous margins.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    MemoryPolicy,
    RemoveData,
    Result,
    State,
    Task,
    Training,
    adapt,
    train,
)
from core.kprior.certificate.network import Audit, losses_of
from core.kprior.data.drawing import Draw, draw_from
from core.kprior.survey import budget_of, survey_change
from tests.core.kprior.problems import FAMILIES, examples_of, l2, rows, spec_of, without

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [50]}
TRAINING = Training(max_epochs=40, batch_size=64, learning_rate=0.005)
SEEDS = (0, 1, 2)
FEW = MemoryPolicy(fraction=0.02)


@cache
def digits() -> tuple[Examples, Examples, Examples]:
    """1 000 rows to learn from, 300 of a holdout, and the rest to judge by."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    labels = torch.nn.functional.one_hot(torch.from_numpy(y), 10).float()
    data = Examples(torch.arange(len(x)), torch.from_numpy(x).float()[order] / 16, labels[order])
    return rows(data, 0, 1000), rows(data, 1000, 1300), rows(data, 1300, len(x))


def digit_spec(architecture: dict[str, Any] = MLP, delta: float = 0.1) -> dict[str, Any]:
    return {
        "input": {"kind": "vector", "dim": 64},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": l2(delta),
    }


def decided(state: State, data: Examples) -> torch.Tensor:
    return state.predictor.family.decide(state.predictor.outputs(state.w, data.x))


def accuracy(state: State, data: Examples) -> float:
    return float((decided(state, data) == data.y.argmax(1)).double().mean())


def of_class(data: Examples, number: int, there: bool = True) -> Examples:
    return data.take((data.y.argmax(1) == number) == there)


def trained(data: Examples, seed: int = 0, delta: float = 0.1) -> Result:
    return train(digit_spec(delta=delta), data.chunks(200), training=replace(TRAINING, seed=seed), policy=FEW)


@cache
def base(seed: int) -> Result:
    return trained(digits()[0], seed)


def changed(before: Result, tasks: list[Task], kept: Examples, seed: int = 0, **options: Any) -> tuple[State, Audit]:
    """The adapted network and its audit."""
    training = Training(seed=seed, **options)
    look_at = [digits()[1]]
    found = adapt(before.state, before.memory, tasks, draw=draw_from(kept), look_at=look_at, training=training)
    assert found.certificate is not None
    assert (found.certificate.kind, found.certificate.bound, found.cost.data_passes) == ("measured", None, 0)
    assert found.certificate.audit is not None
    return found.state, found.certificate.audit


@pytest.mark.parametrize("seed", SEEDS)
def test_a_removed_class_is_not_named_any_more(seed: int) -> None:
    data, _, test = digits()
    gone = of_class(data, 8)
    kept = without(data, gone)
    state, audit = changed(base(seed), [RemoveData([gone])], kept, seed)
    assert state.count == len(kept)
    assert accuracy(base(seed).state, of_class(test, 8)) > 0.8
    assert float((decided(state, of_class(test, 8)) == 8).double().mean()) <= 0.05
    others = of_class(test, 8, there=False)
    assert accuracy(state, others) > accuracy(trained(kept, seed).state, others) - 0.02
    assert not audit.objection
    assert audit.still_named is not None
    assert audit.still_named <= 0.05
    # the holdout's 8s do not count against it
    assert audit.unseen == len(of_class(digits()[1], 8, there=False))


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_labels_are_forgotten(seed: int) -> None:
    data, _, test = digits()
    wrong = Examples(data.key, data.x, data.y.clone())
    bad = torch.arange(0, 1000, 25)
    wrong.y[bad] = wrong.y[bad].roll(1, 1)
    before = train(digit_spec(delta=0.01), wrong.chunks(200), training=replace(TRAINING, seed=seed, max_epochs=80))
    gone = wrong.take(bad)
    assert accuracy(before.state, gone) > 0.5
    kept = without(wrong, gone)
    state, audit = changed(before, [RemoveData([gone])], kept, seed)
    assert accuracy(state, gone) <= 0.1
    assert accuracy(state, test) > accuracy(trained(kept, seed).state, test) - 0.03
    assert not audit.objection


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_known_by_heart_look_like_rows_never_seen(seed: int) -> None:
    """An overfitted network, random rows removed: their loss is near that of a network that never had them."""
    data = rows(digits()[0], 0, 500)
    overfit = Training(max_epochs=150, batch_size=64, learning_rate=0.005, patience=None, seed=seed)
    before = train(digit_spec(delta=1e-4), data.chunks(500), training=overfit)
    gone, kept = rows(data, 0, 100), rows(data, 100, 500)
    state, audit = changed(before, [RemoveData([gone])], kept, seed)
    retrained = train(digit_spec(delta=1e-4), kept.chunks(500), training=overfit).state
    lost, truth = (float(losses_of(s.predictor, s.w, gone).mean()) for s in (state, retrained))
    assert float(losses_of(before.state.predictor, before.state.w, gone).mean()) < truth / 10
    assert truth / 3 < lost < 3 * truth
    assert accuracy(state, kept) > 0.98
    assert audit.membership_auc == pytest.approx(0.5, abs=0.12)
    assert not audit.objection


@pytest.mark.parametrize("seed", SEEDS)
def test_added_rows_are_learnt(seed: int) -> None:
    data, _, test = digits()
    new = of_class(data, 9)
    kept = without(data, new)
    before = trained(kept, seed)
    state, audit = changed(before, [AddData(new.chunks(30))], kept, seed)
    assert accuracy(before.state, of_class(test, 9)) == 0
    assert accuracy(state, test) > accuracy(base(seed).state, test) - 0.03
    assert not audit.objection
    assert audit.removed == 0


def test_what_forgot_nothing_is_objected_to() -> None:
    """The old network itself, held against the yardstick of a removal."""
    data, holdout, _ = digits()
    gone = of_class(data, 8)
    before = base(0).state
    known = survey_change(before, [RemoveData([gone])], draw_from(without(data, gone)), look_at=[holdout])
    audit = known.yardstick.measure(before.predictor, before.w, known.cost)
    assert "still known" in audit.objection
    noise = before.w + 0.5 * torch.randn(before.w.shape, generator=torch.Generator().manual_seed(0))
    plain = survey_change(before, [ChangeRegularizer(l2(0.2))], draw_from(data), look_at=[holdout])
    assert "lost more on the holdout" in plain.yardstick.measure(before.predictor, noise, known.cost).objection


@pytest.mark.parametrize("change", ["wider", "narrower", "deeper", "regularizer"])
def test_a_changed_model_is_near_a_retrain(change: str) -> None:
    data, _, test = digits()
    bodies = {"wider": [80], "narrower": [30], "deeper": [50, 30]}
    body = {"kind": "mlp", "hidden": bodies.get(change, [50])}
    task: Task = ChangeRegularizer(l2(1.0)) if change == "regularizer" else ChangeModel(body)
    state, _ = changed(base(0), [task], data)
    spec = digit_spec(body, 1.0 if change == "regularizer" else 0.1)
    assert state.spec == spec
    assert accuracy(state, test) > accuracy(train(spec, [data], training=TRAINING).state, test) - 0.06


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_forgets_and_every_change_at_once_runs(kind: str) -> None:
    data = examples_of(kind, 260, 3, seed=1)
    first, new, gone = rows(data, 0, 220), rows(data, 220, 260), rows(data, 0, 30)
    spec = spec_of(kind, 3, {"kind": "mlp", "hidden": [60]}, l2(1e-3))
    by_heart = Training(max_epochs=150, batch_size=32, learning_rate=0.01, patience=None)
    before = train(spec, [first], training=by_heart, policy=FEW)
    kept = without(first, gone)
    unseen = examples_of(kind, 200, 3, seed=2, first_key=1000)
    plain = adapt(before.state, before.memory, [RemoveData([gone])], draw=draw_from(kept), look_at=[unseen])
    assert plain.certificate is not None
    audit = plain.certificate.audit
    assert audit is not None
    lost = float(losses_of(before.state.predictor, before.state.w, gone).mean())
    assert audit.removed_loss is not None
    assert audit.removed_loss > lost
    assert (audit.still_named is None) == (kind in ("number", "count"))
    tasks: list[Task] = [AddData([new]), RemoveData([gone]), ChangeRegularizer(l2(0.1))]
    for more in ([], [ChangeModel({"kind": "mlp", "hidden": [20, 10]})]):
        for look_at in ([], [unseen]):  # with and without a holdout
            found = adapt(before.state, before.memory, tasks + more, draw=draw_from(kept), look_at=look_at)
            assert found.state.count == 230
            assert bool(found.state.w.isfinite().all())
            assert found.certificate is not None
            assert found.certificate.audit is not None
            assert found.certificate.audit.holdout == bool(look_at)
            State.from_bytes(found.state.to_bytes())


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    data, _, _ = digits()
    gone = rows(data, 0, 20)
    tasks: list[Task] = [RemoveData([gone])]
    made = [changed(base(0), tasks, without(data, gone), seed, budget=1_000)[0].to_bytes() for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_the_budget_is_kept_and_does_not_grow_with_the_data() -> None:
    data, holdout, _ = digits()
    gone, asked = rows(data, 0, 20), []

    def counted(rows: Examples) -> Draw:
        draw = draw_from(rows)

        def counting(count: int, seed: int) -> Examples:
            asked.append(count)
            return draw(count, seed)

        return counting

    for times in (1, 20):
        kept = without(data, gone)
        many = Examples(*(torch.cat([part] * times) for part in (kept.key, kept.x, kept.y)))
        before = replace(base(0).state, count=len(many) + len(gone))
        tasks: list[Task] = [RemoveData([gone])]
        asked.clear()
        few = Training(budget=5_000)
        found = adapt(before, base(0).memory, tasks, draw=counted(many), look_at=[holdout], training=few)
        assert found.cost.backward_passes <= 5_000
        assert found.certificate is not None
        assert found.certificate.audit is not None
        assert found.certificate.audit.visits == found.cost.backward_passes
        assert sum(asked) <= 4 * 4_096
    assert budget_of(Training(), 60_000, 0, False) == budget_of(Training(), 10**7, 0, False) == 24_000
    assert budget_of(Training(), 60_000, 1_000, True) == 2 * 27_000
    assert budget_of(Training(), 200, 0, False) == 8_000


def test_who_watches_may_stop_it_and_who_is_told_may_raise() -> None:
    data, _, _ = digits()
    gone = rows(data, 0, 20)
    tasks: list[Task] = [RemoveData([gone])]
    seen: list[int] = []

    def watch(visits: int, _w: torch.Tensor) -> bool:
        seen.append(visits)
        return visits > 2_000

    draw = draw_from(without(data, gone))
    found = adapt(base(0).state, base(0).memory, tasks, draw=draw, watch=watch)
    assert not found.converged
    assert 2_000 < found.cost.backward_passes < 2_300
    assert seen == sorted(seen)
    shares: list[float] = []

    def progress(share: float, phrase: str) -> None:
        shares.append(share)
        if share > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(base(0).state, base(0).memory, tasks, draw=draw, progress=progress)
    assert shares == sorted(shares)


def test_images_and_dropout() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (255 * torch.rand(40, 3, 32, 32, generator=generator)).to(torch.uint8)
    y = (x.float().mean((1, 2, 3)) > 127.5).float()[:, None]
    data = Examples(torch.arange(40), x, y)
    spec = {
        "input": {"kind": "image", "shape": [3, 32, 32], "dtype": "uint8"},
        "target": {"kind": "binary"},
        "architecture": {"kind": "cifarnet"},
        "regularizer": l2(),
    }
    before = train(spec, data.chunks(20), training=Training(max_epochs=1, batch_size=20))
    tasks: list[Task] = [
        RemoveData([rows(data, 0, 3)]),
        AddData([replace(rows(data, 3, 5), key=torch.tensor([90, 91]))]),
    ]
    draw, short = draw_from(rows(data, 3, 40)), Training(budget=500)
    made = [adapt(before.state, before.memory, tasks, draw=draw, training=short) for _ in range(2)]
    assert made[0].state.to_bytes() == made[1].state.to_bytes()
    assert made[0].state.count == 39
    assert bool(made[0].state.w.isfinite().all())


def test_a_linear_model_becomes_a_network_and_a_wider_one_begins_where_the_old_one_was() -> None:
    data, _, test = digits()
    linear = train(digit_spec({"kind": "linear", "degree": 1}, 1.0), [data], policy=FEW)
    state, _ = changed(linear, [ChangeModel(MLP)], data)
    assert not state.predictor.linear
    assert accuracy(state, test) > 0.9
    from core.kprior.objective.transfer import successor, transplant

    wider = successor(base(0).state.predictor, {"kind": "mlp", "hidden": [70]}, 0)
    outputs = wider.outputs(transplant(base(0).state, wider), test.x)
    torch.testing.assert_close(outputs, base(0).state.predictor.outputs(base(0).state.w, test.x), rtol=1e-4, atol=1e-4)


def test_all_old_rows_may_go_if_others_come() -> None:
    data, _, _ = digits()
    before = trained(rows(data, 0, 200))
    tasks: list[Task] = [RemoveData([rows(data, 0, 200)]), AddData([rows(data, 200, 500)])]
    state, _ = changed(before, tasks, rows(data, 0, 0))
    assert state.count == 300
    assert accuracy(state, rows(data, 200, 500)) > 0.9
    with pytest.raises(ValueError, match="no examples are left"):
        adapt(before.state, before.memory, [RemoveData([rows(data, 0, 200)])], draw=draw_from(rows(data, 0, 0)))


def test_nothing_of_a_removed_row_stays_in_the_memory() -> None:
    data, _, _ = digits()
    gone = data.take(torch.isin(data.key, base(0).state.memory.key[:5]))
    state, _ = changed(base(0), [RemoveData([gone])], without(data, gone), budget=1_000)
    assert not bool(torch.isin(state.memory.key, gone.key).any())
    assert float(state.memory.weight.sum()) == pytest.approx(len(data) - len(gone), rel=0.01)
    assert state.surrogate is None


def test_a_warm_descent_goes_on_from_the_old_weights() -> None:
    data, _, test = digits()
    kept = of_class(data, 9, there=False)
    before = trained(kept)
    warm = train(digit_spec(), data.chunks(200), start=before.state, training=TRAINING)
    assert accuracy(warm.state, test) > accuracy(base(0).state, test) - 0.03
    assert warm.state.count == len(data)
    assert warm.cost.backward_passes <= 9.5 * len(data)
    wider = {"kind": "mlp", "hidden": [70]}
    again = train(digit_spec(wider), data.chunks(200), start=warm.state, training=TRAINING)
    assert accuracy(again.state, test) > 0.9


def test_an_audit_without_figures_objects_to_nothing() -> None:
    empty = Audit(0, 0, None, None, None, None, None)
    assert empty.objection == ""
    assert "lost more" in replace(empty, unseen_loss=math.inf, unseen_loss_before=1.0).objection
