"""Creating, finding and deleting models."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import Conflict, NotFound
from core.models.fields import NAME
from core.models.policy import Policy
from core.models.training import TrainingSchema
from core.paging import invalid_cursor
from core.tables.models import Model

if TYPE_CHECKING:  # the scheduler does without torch
    from core.kprior.model.spec import Spec


def create(session: Session, name: str, spec: Spec, training: TrainingSchema, policy: Policy) -> Model:
    model = Model(name=name, spec=spec, training=training.plain(), policy=policy.plain())
    try:
        with session.begin_nested():
            session.add(model)
    except IntegrityError as error:
        raise Conflict("model_exists", f"There is a model {name!r} already.") from error
    return model


def find(session: Session, name: str, visible: Collection[str] | None, lock: bool = False) -> Model:
    """A model by name, among the visible ones (None: all), held until the end of the transaction if asked.

    Writers of one model's ledger wait for each other at this lock; that is what leaves positions without gaps.
    """
    query = select(Model).where(Model.name == name)
    model = None
    # what cannot be a name is not asked for: PostgreSQL refuses some of it
    if re.fullmatch(NAME, name) and (visible is None or name in visible):
        model = session.scalar(query.with_for_update() if lock else query)
    if model is None:
        raise NotFound("model_not_found", "There is no such model.")
    return model


def existing_names(session: Session, names: Collection[str]) -> set[str]:
    """Which of some names are models'."""
    return set(session.scalars(select(Model.name).where(Model.name.in_(names))))


def page(session: Session, visible: Collection[str] | None, after: str, limit: int) -> list[Model]:
    """Models in the order of their names."""
    if after and not re.fullmatch(NAME, after):
        raise invalid_cursor()
    query = select(Model).where(Model.name > after).order_by(Model.name).limit(limit)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    return list(session.scalars(query))
