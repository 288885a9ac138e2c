"""Which versions depend on the examples of an erased person. All callers share these conditions.

A person's examples are in the ledger from `part.first_position` until `part.removal_position`; a version at a position
between the two was trained on them, unless it was rebuilt after they were removed. Each condition takes a row or a
table on either side, so that the same expression works in Python and in SQL.
"""

from functools import cache
from typing import Any, overload

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, and_, bindparam, false, or_, select
from sqlalchemy.orm import Session

from core.tables.erasures import OPEN, UNDONE, Erasure, ErasureState, Part
from core.tables.versions import Version

Column = SQLColumnExpression[int]


@overload
def has_examples_at(part: Part, position: int, removals_position: int | None = None) -> bool: ...
@overload
def has_examples_at(part: Part, position: Column, removals_position: Column | None = None) -> ColumnElement[bool]: ...
@overload
def has_examples_at(part: type[Part], position: int, removals_position: int | None = None) -> ColumnElement[bool]: ...
def has_examples_at(part: Any, position: Any, removals_position: Any = None) -> Any:
    """Whether examples of the person are in force at a position, except those removed up to `removals_position`."""
    removed = position if removals_position is None else removals_position
    return (part.first_position <= position) & (part.removal_position > removed)


def precedes_examples(part: Part, position: int) -> bool:
    """Whether a position precedes the person's first example."""
    return part.first_position > position


def may_depend_on(part: Part | type[Part], version: Version | type[Version]) -> ColumnElement[bool]:
    """Versions trained on the person's examples, and those adapted from them until one was verified to have forgotten.

    One of the two arguments is a table. The caller restricts the query to one model.
    """
    either: Any = part
    unverified = either.version > version.number if either.version is not None else false()
    known = either.removal_position > version.removals_position
    return and_(either.first_position <= version.position, or_(known, unverified))


def has_forgotten(part: Part, tip: Version | None) -> bool:
    """Whether the tip was made without the person's examples; a model without a tip depends on nobody."""
    return tip is None or part.removal_position <= tip.removals_position


def made_after_request(part: Part, tip: Version | None) -> bool:
    """Whether the tip was made after the request. Only such versions are verified to have forgotten the person."""
    return tip is not None and tip.number > part.newest_version


def position_has_erased_examples(
    session: Session, model_id: int, position: int, removals_position: int | None = None
) -> bool:
    """Whether examples of a person who has been or is being erased are in force at a position, except those that were
    removed up to `removals_position`.
    """
    query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id)
    known = has_examples_at(Part, position, removals_position)
    query = query.where(Part.model_id == model_id, known, Erasure.state.not_in(UNDONE))
    return session.scalar(query.limit(1)) is not None


def may_depend_on_erased(session: Session, version: Version) -> bool:
    """Whether a version may depend on the examples of a person who is being erased."""
    query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.model_id == version.model_id, Part.state.in_(OPEN), Erasure.state.in_(OPEN))
    return session.scalar(query.where(may_depend_on(Part, version)).limit(1)) is not None


def open_parts(session: Session, model_id: int, states: tuple[ErasureState, ...] = OPEN) -> list[tuple[Part, Erasure]]:
    """A model's parts of open erasures, with the erasures, oldest first."""
    found = session.execute(select_model_parts_in(states), {"model": model_id})
    return [(part, erasure) for part, erasure in found]


@cache  # building the statement takes longer than running it
def select_model_parts_in(states: tuple[ErasureState, ...]) -> Select[Part, Erasure]:
    """Query for a model's parts that are in the given states, as their erasures are; oldest first."""
    return select_parts_in(states).where(Part.model_id == bindparam("model"))


def select_parts_in(states: tuple[ErasureState, ...]) -> Select[Part, Erasure]:
    """Query for parts that are in the given states, as their erasures are; oldest first."""
    query = select(Part, Erasure).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.state.in_(states), Erasure.state.in_(states))
    return query.order_by(Erasure.created_at, Erasure.id)
