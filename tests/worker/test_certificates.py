"""What a version says of its certificate: nothing from which a few removed examples could be told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from core.kprior import Audit, Certificate
from core.kprior.adaptation.network import certificate_from_audit
from core.tables.versions import Version
from core.versions.purging import drop_figures
from worker.versions.certificates import MIN_REMOVED_FOR_AUDIT, REMOVED_FIGURES, publishable

AUDIT = Audit(
    visits=8_000,
    unseen=300,
    unseen_loss=0.31,
    unseen_loss_before=0.30,
    unseen_error=0.01,
    retained_loss=0.20,
    retained_loss_before=0.20,
    removed_loss=0.9,
    expected_loss=0.8,
    membership_auc=0.52,
    expected_auc=0.50,
    auc_error=0.1,
    forgotten_label_rate=0.5,
    expected_label_rate=1.0,
    capped_loss=0.6,
    expected_capped_loss=0.6,
    capped_loss_error=0.1,
    ranked_first=0.5,
    expected_ranked_first=0.5,
)


@pytest.mark.parametrize("removed", [1, MIN_REMOVED_FOR_AUDIT - 1, MIN_REMOVED_FOR_AUDIT])
def test_audit_figures_of_few_removed_examples_are_not_published(removed: int) -> None:
    spec = {"input": {"kind": "vector", "dim": 2}, "architecture": {"kind": "mlp", "hidden": [4]}}
    snapshot: Any = SimpleNamespace(removal=None, spec=spec)
    told = publishable(certificate_from_audit(replace(AUDIT, removed=removed)), snapshot)
    assert told is not None
    assert told.audit is not None
    shown = {name for name in REMOVED_FIGURES if getattr(told.audit, name) is not None}
    assert shown == (set(REMOVED_FIGURES) if removed >= MIN_REMOVED_FOR_AUDIT else set())
    assert told.audit.unseen_loss == 0.31


def test_a_purged_version_keeps_one_digit_of_its_duration_and_no_hash() -> None:
    cost = {"backward_passes": 683, "data_passes": 5, "seconds": 1.234}
    version = Version(sha256="ab", cost=cost, metrics={"loss": 0.1}, certificate=Certificate("bound"), evaluation=None)
    drop_figures(version)
    assert (version.sha256, version.metrics, version.certificate) == ("", {}, None)
    assert version.cost == {"backward_passes": 0, "data_passes": 0, "seconds": 1.0}
