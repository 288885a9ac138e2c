"""The audit of networks rejects faked unlearning, and accepts honest work. `amend bench audit` counts more cases."""

from __future__ import annotations

import pytest

from bench.audit import FAKES, HONEST, audit_case, cases
from bench.engine.network_tasks import images

EPOCHS = 30


@pytest.mark.parametrize("number", [0, 2], ids=["a class", "rows known by heart"])
def test_faked_unlearning_is_rejected(number: int) -> None:
    given = images(None, False)
    case = list(cases(given, EPOCHS))[number]
    objections = dict(audit_case(case, given, seed=0))
    assert [name for name in FAKES if name in objections and not objections[name]] == []
    assert [objections[name] for name in HONEST] == ["", ""]
