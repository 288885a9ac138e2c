"""Creating, finding and listing models."""

import difflib
import re
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import Conflict, NotFound
from core.kprior.model.spec import Spec
from core.models.field_types import NAME
from core.models.policy import Policy
from core.models.training_options import TrainingSchema
from core.paging import invalid_cursor
from core.tables.models import Model

MAX_COMPARED = 1000
"""Maximum number of names that an unknown name is compared with."""


def create(
    session: Session, name: str, spec: Spec, training: TrainingSchema, policy: Policy, by: str | None = None
) -> Model:
    """Create a model; `by` is the id of the key that does."""
    model = Model(name=name, spec=spec, training=training.plain(), policy=policy.plain(), created_by=by)
    try:
        with session.begin_nested():
            session.add(model)
    except IntegrityError as error:
        raise Conflict("model_exists", f"A model named {name!r} already exists.") from error
    return model


def find(session: Session, name: str, visible: Collection[str] | None, lock: bool = False) -> Model:
    """Find a model by name among the visible ones (None: all). With `lock`, its row is locked until the commit.

    Writers of a model's ledger wait for each other at this lock, so that positions have no gaps.
    """
    query = select(Model).where(Model.name == name)
    model = None
    # text that cannot be a name is not sent: PostgreSQL rejects some of it
    if re.fullmatch(NAME, name) and (visible is None or name in visible):
        model = session.scalar(query.with_for_update() if lock else query)
    if model is None:
        raise NotFound("model_not_found", f"This model does not exist.{suggest(session, name, visible)}")
    return model


def suggest(session: Session, name: str, visible: Collection[str] | None) -> str:
    """A sentence with the most similar name of a visible model; "" if none is similar."""
    query = select(Model.name).order_by(Model.name).limit(MAX_COMPARED)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    near = difflib.get_close_matches(name[:63], list(session.scalars(query)), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def existing_names(session: Session, names: Collection[str]) -> set[str]:
    """The given names that belong to models."""
    return set(session.scalars(select(Model.name).where(Model.name.in_(names))))


def page(session: Session, visible: Collection[str] | None, after: str, limit: int) -> list[Model]:
    """A page of models, ordered by name."""
    if after and not re.fullmatch(NAME, after):
        raise invalid_cursor()
    query = select(Model).where(Model.name > after).order_by(Model.name).limit(limit)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    return list(session.scalars(query))
