"""Networks that are adapted by drawn rows forget what is removed, and say what was measured of it.

No theorem holds, so the truth is a retrain's figures on scikit-learn's digits, with generous margins.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    RemoveData,
    State,
    Task,
    Training,
    adapt,
    train,
)
from core.kprior.adaptation.network_survey import survey_change
from core.kprior.certificate.audit import Audit
from core.kprior.data.random_samples import draw_from
from core.kprior.passes.row_losses import audit_rows
from tests.core.kprior.adaptation.digits import (
    FEW,
    SEEDS,
    TRAINING,
    accuracy,
    adapt_digits,
    base,
    digit_spec,
    digits,
    of_class,
    predict,
    train_digits,
)
from tests.core.kprior.problems import FAMILIES, examples_of, l2, rows, spec_of, without


@pytest.mark.parametrize("seed", SEEDS)
def test_a_removed_class_is_no_longer_predicted(seed: int) -> None:
    data, _, test = digits()
    gone = of_class(data, 8)
    kept = without(data, gone)
    state, audit = adapt_digits(base(seed), [RemoveData([gone])], kept, seed)
    assert state.count == len(kept)
    assert accuracy(base(seed).state, of_class(test, 8)) > 0.8
    assert float((predict(state, of_class(test, 8)) == 8).double().mean()) <= 0.05
    others = of_class(test, 8, there=False)
    assert accuracy(state, others) > accuracy(train_digits(kept, seed).state, others) - 0.02
    assert not audit.objection
    assert audit.forgotten_label_rate is not None
    assert audit.forgotten_label_rate <= 0.05
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
    state, audit = adapt_digits(before, [RemoveData([gone])], kept, seed)
    assert accuracy(state, gone) <= 0.1
    assert accuracy(state, test) > accuracy(train_digits(kept, seed).state, test) - 0.03
    assert not audit.objection


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_known_by_heart_look_like_rows_never_seen(seed: int) -> None:
    """An overfitted network, random rows removed: their loss is near that of a network that never had them."""
    data = rows(digits()[0], 0, 500)
    overfit = Training(max_epochs=150, batch_size=64, learning_rate=0.005, patience=None, seed=seed)
    before = train(digit_spec(delta=1e-4), data.chunks(500), training=overfit)
    gone, kept = rows(data, 0, 100), rows(data, 100, 500)
    state, audit = adapt_digits(before, [RemoveData([gone])], kept, seed)
    retrained = train(digit_spec(delta=1e-4), kept.chunks(500), training=overfit).state
    lost, truth = (float(audit_rows(s.predictor, s.w, gone).losses.mean()) for s in (state, retrained))
    assert float(audit_rows(before.state.predictor, before.state.w, gone).losses.mean()) < truth / 10
    assert truth / 3 < lost < 3 * truth
    assert accuracy(state, kept) > 0.98
    assert audit.membership_auc == pytest.approx(0.5, abs=0.12)
    assert not audit.objection


def test_what_forgot_nothing_is_objected_to() -> None:
    """The old network itself, held against the yardstick of a removal."""
    data, holdout, _ = digits()
    gone = of_class(data, 8)
    before = base(0).state
    known = survey_change(before, [RemoveData([gone])], draw_from(without(data, gone)), holdout=[holdout])
    audit = known.yardstick.measure(before.predictor, before.w, known.cost)
    assert "still recognised" in audit.objection
    noise = before.w + 0.5 * torch.randn(before.w.shape, generator=torch.Generator().manual_seed(0))
    plain = survey_change(before, [ChangeRegularizer(l2(0.2))], draw_from(data), holdout=[holdout])
    assert (
        "loss on the holdout is clearly larger"
        in plain.yardstick.measure(before.predictor, noise, known.cost).objection
    )


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_forgets_and_every_change_at_once_runs(kind: str) -> None:
    data = examples_of(kind, 260, 3, seed=1)
    first, new, gone = rows(data, 0, 220), rows(data, 220, 260), rows(data, 0, 30)
    spec = spec_of(kind, 3, {"kind": "mlp", "hidden": [60]}, l2(1e-3))
    by_heart = Training(max_epochs=150, batch_size=32, learning_rate=0.01, patience=None)
    before = train(spec, [first], training=by_heart, policy=FEW)
    kept = without(first, gone)
    unseen = examples_of(kind, 200, 3, seed=2, first_key=1000)
    plain = adapt(before.state, before.memory, [RemoveData([gone])], draw=draw_from(kept), holdout=[unseen])
    assert plain.certificate is not None
    audit = plain.certificate.audit
    assert audit is not None
    lost = float(audit_rows(before.state.predictor, before.state.w, gone).losses.mean())
    assert audit.removed_loss is not None
    assert audit.removed_loss > lost
    assert (audit.forgotten_label_rate is None) == (kind in ("number", "count"))
    tasks: list[Task] = [AddData([new]), RemoveData([gone]), ChangeRegularizer(l2(0.1))]
    for more in ([], [ChangeModel({"kind": "mlp", "hidden": [20, 10]})]):
        for holdout in ([], [unseen]):  # with and without a holdout
            found = adapt(before.state, before.memory, tasks + more, draw=draw_from(kept), holdout=holdout)
            assert found.state.count == 230
            assert bool(found.state.w.isfinite().all())
            assert found.certificate is not None
            assert found.certificate.audit is not None
            assert found.certificate.audit.holdout == bool(holdout)
            State.from_bytes(found.state.to_bytes())


def test_nothing_of_a_removed_row_stays_in_the_memory() -> None:
    data, _, _ = digits()
    gone = data.take(torch.isin(data.key, base(0).state.memory.key[:5]))
    state, _ = adapt_digits(base(0), [RemoveData([gone])], without(data, gone), budget=1_000)
    assert not bool(torch.isin(state.memory.key, gone.key).any())
    assert float(state.memory.weight.sum()) == pytest.approx(len(data) - len(gone), rel=0.01)
    assert state.surrogate is None


def test_an_audit_without_figures_objects_to_nothing() -> None:
    empty = Audit(0, 0, None, None, None, None, None)
    assert empty.objection == ""
    assert "clearly larger" in replace(empty, unseen_loss=math.inf, unseen_loss_before=1.0).objection
