"""Classes and labels that no training example has: a target may name more of them than have arrived so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy import BigInteger, ColumnElement, cast, or_, select
from sqlalchemy.orm import Session

from core.kprior.model.spec import Spec, values_of
from core.ledger.layouts import LayoutChange, steps_until
from core.tables.ledger import Example
from core.tables.versions import Version


def untrained_classes(session: Session, model_id: int, spec: Spec, at: int) -> list[int]:
    """The classes, as codes of the target in force at a position, that no training example in force there has.

    Empty for targets other than classes.
    """
    return find_untrained(session, model_id, spec, at) if spec["target"]["kind"] == "classes" else []


def untrained_labels(session: Session, model_id: int, spec: Spec, at: int) -> list[int]:
    """The labels, as `untrained_classes`. Empty for targets other than labels."""
    return find_untrained(session, model_id, spec, at) if spec["target"]["kind"] == "labels" else []


def find_untrained(session: Session, model_id: int, spec: Spec, at: int) -> list[int]:
    """The query stops at the first example of each class or label."""
    target = spec["target"]
    steps = steps_until(session, model_id, at)
    edges = [0, *(step.position for step in steps), at]
    in_force = or_(Example.removed.is_(None), Example.removed > at)
    ours = (Example.model_id == model_id, Example.holdout.is_(False), in_force)
    missing = []
    for code in range(len(values_of(target))):
        for age, (after, until) in enumerate(pairwise(edges)):
            stored = codes_before(steps[age:], code)
            within = (Example.position > after, Example.position <= until, has_one_of(target["kind"], stored))
            if stored and session.scalar(select(Example.position).where(*ours, *within).limit(1)) is not None:
                break
        else:
            missing.append(code)
    return missing


def has_one_of(kind: str, codes: Sequence[int]) -> ColumnElement[bool]:
    """Whether an example has one of these classes or labels; a set of labels is stored as the sum of their bits."""
    if kind == "classes":
        return Example.y.in_(codes)
    return cast(Example.y, BigInteger).op("&")(sum(1 << code for code in codes)) != 0


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
