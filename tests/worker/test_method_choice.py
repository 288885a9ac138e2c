"""Which way a network's next version is made: each outcome, what the version and the job's message say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.jobs.leases import JobCancelled
from core.kprior import Cost, Examples, SolverError, Training
from core.kprior.certificate.audit import Audit
from core.tables.versions import VersionKind
from core.versions.drafts import VersionDraft
from worker.versions import method_choice
from worker.versions.method_choice import NetworkTrials, next_network
from worker.versions.network_costs import CostHistory
from worker.versions.snapshot import Unadaptable

PASSES = Audit(10, 100, 0.2, 0.2, 0.01, 0.1, 0.1)
WORSE = Audit(10, 100, 0.9, 0.2, 0.01, 0.1, 0.1)
KNOWN = Audit(
    10,
    100,
    0.2,
    0.2,
    0.01,
    0.1,
    0.1,
    removed=50,
    removed_loss=0.1,
    membership_auc=0.9,
    expected_auc=0.5,
    auc_error=0.02,
)


def make_draft(method: str, visits: int = 100) -> VersionDraft:
    kind = VersionKind.TRAINED if method == "retrain" else VersionKind.ADAPTED
    cost = Cost(backward_passes=visits)
    parts = {
        "parent": 1,
        "since": 1,
        "position": 2,
        "dataset_digest": "",
        "certificate": None,
        "metrics": {},
        "evaluation": {},
    }
    return VersionDraft(state=None, kind=kind, cost=cost, method=method, **parts)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """Trials whose results are given."""

    audits: dict[str, Audit | Exception | None]
    predicted: dict[str, int] = field(default_factory=lambda: {"kprior": 10, "warm": 20, "retrain": 30})
    asked: list[str] = field(default_factory=list)
    survey: Any = field(default_factory=lambda: SimpleNamespace(cost=Cost(backward_passes=5), count=50, budget=40))
    describe = NetworkTrials.describe

    def make(self, method: str) -> tuple[VersionDraft, Audit | None]:
        self.asked.append(method)
        audit = self.audits[method]
        if isinstance(audit, Exception):
            raise audit
        return make_draft(method), audit


def chosen(monkeypatch: pytest.MonkeyPatch, scripted: Scripted) -> VersionDraft:
    monkeypatch.setattr(NetworkTrials, "of", lambda *_: scripted)
    return next_network(SimpleNamespace(job_id="j"), SimpleNamespace(erasing=False), None)  # type: ignore[arg-type]


def test_the_adaptation_is_the_version_if_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted({"kprior": PASSES})
    version = chosen(monkeypatch, scripted)
    assert (version.method, version.why, scripted.asked) == ("kprior", "", ["kprior"])
    assert version.cost.backward_passes == 105
    [only] = version.trials
    assert (only["method"], only["visits"], only["predicted"], only["objection"]) == ("kprior", 105, 10, "")


@pytest.mark.parametrize("failed", [WORSE, KNOWN], ids=["worse", "known"])
def test_an_adaptation_that_fails_gives_way_to_the_warm_descent(monkeypatch: pytest.MonkeyPatch, failed: Audit) -> None:
    version = chosen(monkeypatch, Scripted({"kprior": failed, "warm": PASSES}))
    assert (version.method, version.kind) == ("warm", VersionKind.ADAPTED)
    assert failed.objection
    assert failed.objection in version.why
    assert version.cost.backward_passes == 205  # of both, and of what they began with


def test_a_retrain_is_taken_if_both_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    version = chosen(monkeypatch, Scripted({"kprior": WORSE, "warm": KNOWN, "retrain": None}))
    assert (version.method, version.kind) == ("retrain", VersionKind.TRAINED)
    assert "the adaptation did not pass" in version.why
    assert "the warm descent on all examples did not pass" in version.why
    assert [c["method"] for c in version.trials] == ["kprior", "warm", "retrain"]


def test_a_method_that_cannot_be_computed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    version = chosen(monkeypatch, Scripted({"kprior": SolverError("diverged"), "warm": PASSES}))
    assert version.method == "warm"
    assert "it could not be computed (SolverError)" in version.why
    with pytest.raises(SolverError):
        chosen(monkeypatch, Scripted({"kprior": WORSE, "warm": WORSE, "retrain": SolverError("diverged")}))


def test_the_cheapest_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted({"warm": WORSE, "retrain": None}, {"kprior": 99, "warm": 20, "retrain": 30})
    version = chosen(monkeypatch, scripted)
    assert (version.method, scripted.asked) == ("retrain", ["warm", "retrain"])


def test_a_job_that_is_cancelled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted({"kprior": JobCancelled(), "warm": PASSES})
    with pytest.raises(JobCancelled):
        chosen(monkeypatch, scripted)
    assert scripted.asked == ["kprior"]


def test_a_model_that_cannot_be_adapted_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> NetworkTrials:
        raise Unadaptable("examples are purged")

    monkeypatch.setattr(NetworkTrials, "of", refuse)
    monkeypatch.setattr(method_choice, "train_draft", lambda *_, **more: make_draft("retrain"))
    monkeypatch.setattr(method_choice, "find_units", lambda _: None)
    task = SimpleNamespace(job_id="j", progress_within=lambda *_: None)
    for erasing in (False, True):
        policy = SimpleNamespace(erasure=SimpleNamespace(retrains=lambda network: False))
        snapshot = SimpleNamespace(erasing=erasing, policy=policy, spec={"architecture": {"kind": "linear"}})
        version = next_network(task, snapshot, None)  # type: ignore[arg-type]
        # why it must be a retrain would tell something of who is erased
        assert (version.method, version.why == "examples are purged") == ("retrain", not erasing)


def test_a_network_of_few_examples_is_retrained_without_a_survey() -> None:
    def rows(count: int) -> list[Examples]:
        return [Examples(torch.arange(count), torch.zeros(count, 1), torch.zeros(count, 1))] if count else []

    measured, training = CostHistory((), (100.0,)), Training()
    assert measured.favours_retrain(training, 200, rows(30), rows(0))
    assert measured.favours_retrain(training, 200, rows(0), rows(30))
    assert not measured.favours_retrain(training, 5_000, rows(30), rows(30))
    assert not measured.favours_retrain(training, 200, rows(0), rows(0))  # only an audit is missing
    # small minibatches make a training expensive, and an adaptation that needed its whole budget makes it cheap
    assert not measured.favours_retrain(Training(batch_size=16), 200, rows(0), rows(30))
    before = 1_000, rows(0), rows(30)
    assert CostHistory((1.0,), (50.0,)).favours_retrain(training, *before)
    assert not CostHistory((0.5,), (100.0,)).favours_retrain(training, *before)
    assert not CostHistory((1.0,), ()).favours_retrain(training, *before)  # no training was measured


def test_the_worker_retrains_at_once_if_that_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = SimpleNamespace(parent=SimpleNamespace(count=200), added=[], removed=[], tasks=[])
    monkeypatch.setattr(method_choice, "changes_since", lambda *_: changes)
    monkeypatch.setattr(CostHistory, "read", lambda _: CostHistory((), (1.0,)))
    monkeypatch.setattr(CostHistory, "favours_retrain", lambda *_: True)
    with pytest.raises(Unadaptable, match="fewer steps"):
        NetworkTrials.of(None, SimpleNamespace(training=Training()), None)  # type: ignore[arg-type]
