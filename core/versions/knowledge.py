"""Which versions know an erased person: the conditions that all callers share.

A person's examples stood in the ledger from `part.first` until `part.removed`; a version that stands for a position
between the two has learnt from them. Each condition takes a row or a table on either side, so that the same words
decide in Python and in SQL.
"""

from __future__ import annotations

from typing import Any, overload

from sqlalchemy import ColumnElement, SQLColumnExpression, and_, false, or_, select
from sqlalchemy.orm import Session

from core.tables.erasures import OPEN, Erasure, ErasureState, Part
from core.tables.versions import Version

Column = SQLColumnExpression[int]


@overload
def knows(part: Part, position: int) -> bool: ...
@overload
def knows(part: Part, position: Column) -> ColumnElement[bool]: ...
@overload
def knows(part: type[Part], position: int) -> ColumnElement[bool]: ...
def knows(part: Any, position: Any) -> Any:
    """Whether the ledger has the person's examples at a position."""
    return (part.first <= position) & (part.removed > position)


def never_knew(part: Part, position: int) -> bool:
    """Whether a position is from before the person's first example."""
    return part.first > position


def may_know(part: Part | type[Part], version: Version | type[Version]) -> ColumnElement[bool]:
    """Versions that know the person, and those made from them before one was shown to have forgotten.

    Of one model: the caller says which. One of the two is a table.
    """
    either: Any = part
    unproven = either.version > version.number if either.version is not None else false()
    return and_(either.first <= version.position, or_(either.removed > version.position, unproven))


def has_forgotten(part: Part, tip: Version | None) -> bool:
    """Whether the tip was made without the person's examples; a model without a tip knows nobody."""
    return tip is None or part.removed <= tip.position


def is_proven(part: Part, tip: Version | None) -> bool:
    """Whether the tip was made after the request came: only then was it checked that it has forgotten the person."""
    return tip is not None and tip.number > part.newest


def position_knows_erased(session: Session, model_id: int, position: int) -> bool:
    """Whether the ledger up to a position contains examples of somebody who is, or is being, erased."""
    query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.model_id == model_id, knows(Part, position), Erasure.state != ErasureState.REFUSED)
    return session.scalar(query.limit(1)) is not None


def version_knows_erased(session: Session, version: Version) -> bool:
    """Whether a version knew, or may have known, a person who is being erased."""
    query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.model_id == version.model_id, Part.state.in_(OPEN), Erasure.state.in_(OPEN))
    return session.scalar(query.where(may_know(Part, version)).limit(1)) is not None
