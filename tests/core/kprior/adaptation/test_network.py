"""Networks that are adapted by drawn rows learn, stay as good, keep to their budget, and stop when asked to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    RemoveData,
    Task,
    Training,
    adapt,
    train,
)
from core.kprior.adaptation.network import choose_rate, step_loss_of
from core.kprior.adaptation.network_survey import budget_of, survey_change
from core.kprior.data.random_samples import Draw, draw_from
from core.kprior.passes.cost import Cost
from core.kprior.training.training import Predecessor
from tests.core.kprior.adaptation.digits import (
    FEW,
    MLP,
    SEEDS,
    TRAINING,
    accuracy,
    adapt_digits,
    base,
    digit_spec,
    digits,
    of_class,
    train_digits,
)
from tests.core.kprior.problems import l2, rows, without


@pytest.mark.parametrize("seed", SEEDS)
def test_added_rows_are_learnt(seed: int) -> None:
    data, _, test = digits()
    new = of_class(data, 9)
    kept = without(data, new)
    before = train_digits(kept, seed)
    state, audit = adapt_digits(before, [AddData(new.chunks(30))], kept, seed)
    assert accuracy(before.state, of_class(test, 9)) == 0
    assert accuracy(state, test) > accuracy(base(seed).state, test) - 0.03
    assert not audit.objection
    assert audit.removed == 0


@pytest.mark.parametrize("change", ["wider", "narrower", "deeper", "regularizer"])
def test_a_changed_model_is_near_a_retrain(change: str) -> None:
    data, _, test = digits()
    bodies = {"wider": [80], "narrower": [30], "deeper": [50, 30]}
    body = {"kind": "mlp", "hidden": bodies.get(change, [50])}
    task: Task = ChangeRegularizer(l2(1.0)) if change == "regularizer" else ChangeModel(body)
    state, _ = adapt_digits(base(0), [task], data)
    spec = digit_spec(body, 1.0 if change == "regularizer" else 0.1)
    assert state.spec == spec
    assert accuracy(state, test) > accuracy(train(spec, [data], training=TRAINING).state, test) - 0.06


def test_a_new_architecture_has_the_learning_rate_that_gets_it_further() -> None:
    """With too large a rate a network of fresh weights may never leave chance."""
    data, holdout, _ = digits()
    body: Task = ChangeModel({"kind": "mlp", "hidden": [30]})
    survey = survey_change(base(0).state, [body], draw_from(data), holdout=[holdout], training=TRAINING)
    start = survey.predictor.initial_weights()
    for rate, chosen in ((0.4, 0.1), (0.004, 0.004)):
        tried = replace(survey, rate=rate)
        assert choose_rate(tried, start, step_loss_of(tried, Cost())[0], 10, Cost()) == chosen

    def overflow(w: Tensor) -> tuple[Tensor, int]:
        """A loss that is no number any more a fifth away from where it began."""
        return w.sum() * (math.nan if (w - start).abs().max() > 0.2 else 1e-3), 1

    assert choose_rate(replace(survey, rate=0.4), start, overflow, 2, Cost()) == 0.1


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    data, _, _ = digits()
    gone = rows(data, 0, 20)
    tasks: list[Task] = [RemoveData([gone])]
    made = [adapt_digits(base(0), tasks, without(data, gone), seed, budget=1_000)[0].to_bytes() for seed in (0, 0, 1)]
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
        found = adapt(before, base(0).memory, tasks, draw=counted(many), holdout=[holdout], training=few)
        assert found.cost.backward_passes <= 5_000
        assert found.certificate is not None
        assert found.certificate.audit is not None
        assert found.certificate.audit.visits == found.cost.backward_passes
        assert sum(asked) <= 4 * 4_096
    assert budget_of(Training(), 60_000, 0, False) == budget_of(Training(), 10**7, 0, False) == 24_000
    assert budget_of(Training(), 60_000, 1_000, True) == 2 * 27_000
    assert budget_of(Training(), 200, 0, False) == 8_000


def test_the_old_network_labels_each_row_once_in_any_number_of_epochs() -> None:
    data, _, _ = digits()
    old, few, labelled = base(0).state, rows(data, 0, 600), list[Tensor]()

    def teach(z: Tensor) -> Tensor:
        labelled.append(z)
        return old.predictor.outputs_of_encoded(old.w, z)

    survey = survey_change(old, [RemoveData([rows(data, 600, 1000)])], draw_from(few))
    batches = survey.minibatches(old.predictor, order=0, teach=teach)
    for _ in range(3 * 600 // len(batches)):
        z, _, _, soft = batches.take()
        assert soft is not None
        torch.testing.assert_close(soft, teach(z))
        labelled.pop()
    assert sum(map(len, labelled)) == len(few) - (0 if survey.reserved is None else len(survey.reserved))


def test_a_callback_may_raise_to_stop_the_work() -> None:
    data, _, _ = digits()
    gone = rows(data, 0, 20)
    tasks: list[Task] = [RemoveData([gone])]
    draw = draw_from(without(data, gone))
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
    state, _ = adapt_digits(linear, [ChangeModel(MLP)], data)
    assert not state.predictor.linear
    assert accuracy(state, test) > 0.9
    from core.kprior.objective.transfer import new_predictor, transplant

    wider = new_predictor(base(0).state.predictor, {"kind": "mlp", "hidden": [70]}, 0)
    outputs = wider.outputs(transplant(base(0).state, wider), test.x)
    torch.testing.assert_close(outputs, base(0).state.predictor.outputs(base(0).state.w, test.x), rtol=1e-4, atol=1e-4)


def test_all_old_rows_may_go_if_others_come() -> None:
    data, _, _ = digits()
    before = train_digits(rows(data, 0, 200))
    tasks: list[Task] = [RemoveData([rows(data, 0, 200)]), AddData([rows(data, 200, 500)])]
    state, _ = adapt_digits(before, tasks, rows(data, 0, 0))
    assert state.count == 300
    assert accuracy(state, rows(data, 200, 500)) > 0.9
    with pytest.raises(ValueError, match="No examples are left"):
        adapt(before.state, before.memory, [RemoveData([rows(data, 0, 200)])], draw=draw_from(rows(data, 0, 0)))


def test_a_warm_descent_starts_from_the_old_weights() -> None:
    data, _, test = digits()
    kept = of_class(data, 9, there=False)
    before = train_digits(kept)
    warm = train(digit_spec(), data.chunks(200), predecessor=Predecessor(before.state, warm=True), training=TRAINING)
    assert accuracy(warm.state, test) > accuracy(base(0).state, test) - 0.03
    assert warm.state.count == len(data)
    assert warm.cost.backward_passes <= 9.5 * len(data)
    wider = {"kind": "mlp", "hidden": [70]}
    again = train(
        digit_spec(wider), data.chunks(200), predecessor=Predecessor(warm.state, warm=True), training=TRAINING
    )
    assert accuracy(again.state, test) > 0.9
