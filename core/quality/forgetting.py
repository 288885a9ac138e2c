"""What an erasure deletes from quality records. It needs neither torch nor scipy, which the scheduler does not load."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.documents import GateComparison, GateDocument, SegmentComparison
from core.tables.quality import QualityWindow
from core.versions.privacy_rounding import coarse

MIN_ROUNDED_ROWS = 10
"""A window with fewer examples is deleted: rounded metrics of so few could still be traced to one of them."""
NUMBERS = ("champion", "candidate", "difference", "difference_se", "relative")


def forget_versions(gate: GateDocument, gone: Collection[int]) -> GateDocument:
    """A version's gate without the metrics of purged versions: weights could be guessed and checked by them."""
    kept = cast(GateDocument, blank(gate, gone))
    if "confirmed" in gate:
        kept["confirmed"] = blank(gate["confirmed"], gone)
    if "batch" in gate:
        kept["batch"] = blank(gate["batch"], gone)
    if "segments" in gate:
        kept["segments"] = [cast(SegmentComparison, blank(segment, gone)) for segment in gate["segments"]]
    return kept


def blank(comparison: GateComparison, gone: Collection[int]) -> GateComparison:
    """A comparison without its metrics, if the version that it compares with is purged."""
    if comparison["version"] not in gone:
        return comparison.copy()
    return cast(GateComparison, {**comparison, **dict.fromkeys(NUMBERS)})


def round_windows(session: Session, model_id: int, gone: Collection[int], positions: Collection[int]) -> None:
    """Leave only rounded metrics of windows that depend on an erased person.

    Those are the windows in which a purged version scored, and the windows that contain the person's examples.
    """
    query = select(QualityWindow).where(QualityWindow.model_id == model_id, QualityWindow.rounded.is_(False))
    ordered = sorted(positions)
    for window in session.scalars(query):
        contained = bisect_right(ordered, window.last_position) > bisect_left(ordered, window.first_position)
        if not contained and {window.champion, window.frozen, window.challenger}.isdisjoint(gone):
            continue
        if window.rows < MIN_ROUNDED_ROWS:
            session.delete(window)
            continue
        window.scores, window.segments, window.rounded = None, None, True
        window.metrics = {name: round_metrics(metrics, window.rows) for name, metrics in window.metrics.items()}


def round_metrics(metrics: dict[str, float], rows: int) -> dict[str, float]:
    """Metrics on a grid that hides each single row."""
    return {name: value for name, value in coarse({**metrics, "rows": rows}).items() if name != "rows"}
