"""What a receipt says, without a word about who the person is."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from core.database import utc_text
from core.erasure import trail
from core.tables.erasures import Erasure, Part


def told(session: Session, erasure: Erasure, parts: list[Part]) -> dict[str, object]:
    """What a receipt says, without a word about who the person is."""
    assert erasure.completed_at is not None
    return {
        "subject_token": erasure.token,
        "received_at": utc_text(erasure.received_at),
        "due_at": utc_text(erasure.due_at),
        "extended": erasure.extension is not None,
        "late": erasure.late,
        "completed_at": utc_text(erasure.completed_at),
        "trail": trail.shown(session, erasure),
        "found": sum(part.examples for part in parts),
        "statement": statement(parts),
        "models": [{"model": part.model, "examples": part.examples, **(part.figures or {})} for part in parts],
    }


def statement(parts: list[Part]) -> str:
    """The whole in a sentence."""
    if not parts:
        return "No model holds or has learnt from any example about this person."
    count = sum(part.examples for part in parts)
    examples, their = ("1 example", "its") if count == 1 else (f"{count} examples", "their")
    models = "1 model" if len(parts) == 1 else f"{len(parts)} models"
    were = "was" if count == 1 else "were"
    said = f"{examples} about this person {were} forgotten by {models} and deleted; {their} absence was verified."
    if unbounded := sum(without_bound(part.figures or {}) for part in parts):
        networks = (
            "1 of them is a network that was" if unbounded == 1 else f"{unbounded} of them are networks that were"
        )
        said += f" {networks} adapted: what is left there was measured, and is not proven."
    if until := max((part.figures or {}).get("kept_until") or "" for part in parts):
        said += f" Versions that knew the person are kept, out of use, until {until[:10]}."
    return said


def without_bound(figures: dict[str, Any]) -> bool:
    """Whether a model was adapted without a bound on how near it is to a retrain."""
    return figures.get("method") == "adapted" and (figures.get("certificate") or {}).get("kind") != "bound"
