"""Classes that no training example has: those of a target that names more classes than have arrived so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.kprior.model.spec import Spec
from core.ledger.layouts import LayoutChange, steps_until
from core.tables.ledger import Example
from core.tables.versions import Version


def untrained_classes(session: Session, model_id: int, spec: Spec, at: int) -> list[int]:
    """The classes, as codes of the target in force at a position, that no training example in force there has.

    Empty for targets other than classes. The query stops at the first example of each class.
    """
    target = spec["target"]
    if target["kind"] != "classes":
        return []
    steps = steps_until(session, model_id, at)
    edges = [0, *(step.position for step in steps), at]
    in_force = or_(Example.removed.is_(None), Example.removed > at)
    ours = (Example.model_id == model_id, Example.holdout.is_(False), in_force)
    missing = []
    for code in range(len(target["values"])):
        for age, (after, until) in enumerate(pairwise(edges)):
            stored = codes_before(steps[age:], code)
            within = (Example.position > after, Example.position <= until, Example.y.in_(stored))
            if stored and session.scalar(select(Example.position).where(*ours, *within).limit(1)) is not None:
                break
        else:
            missing.append(code)
    return missing


def codes_before(steps: Sequence[LayoutChange], code: int) -> list[int]:
    """The codes that became `code` by later changes of the target."""
    codes = [code]
    for step in reversed(steps):
        if step.target is not None:
            codes = [before for before, after in enumerate(step.target) if after in codes]
    return codes


def has_all_classes(version: Version, spec: Spec) -> bool:
    """Whether it is certain, without a query, that a version was trained on examples of all classes: without them, no
    bound is finite if biases are free."""
    certificate = version.certificate
    bound = None if certificate is None else certificate.bound
    return has_free_biases(spec) and bound is not None and math.isfinite(bound)


def has_free_biases(spec: Spec) -> bool:
    """Whether biases are not penalised: the bias of a class without examples has no optimum then."""
    regularizer = spec["regularizer"]
    return not regularizer.get("penalize_bias", False) and not isinstance(regularizer.get("delta"), list)
