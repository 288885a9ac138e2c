"""What an erasure deletes from quality records. It needs neither torch nor scipy, which the scheduler does not load."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from random import SystemRandom
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.documents import GateComparison, GateDocument, SegmentComparison
from core.tables.quality import QualityWindow
from core.versions.privacy_rounding import ERROR_SUFFIX, ROW_AVERAGES, Draw, coarse, significant

MIN_ROUNDED_ROWS = 10
"""A window with fewer examples is deleted: rounded metrics of so few could still be traced to one of them."""
MAX_SHARE = 0.25
"""Largest share of a subject for which shares of rows are published: their grid has steps of four times this share."""
NUMBERS = ("champion", "candidate", "difference", "difference_se", "relative")


def forget_versions(gate: GateDocument, gone: Collection[int]) -> GateDocument:
    """A version's gate without the metrics of purged versions: weights could be guessed and checked by them."""
    kept = cast(GateDocument, blank(gate, gone))
    if "confirmed" in gate:
        kept["confirmed"] = blank(gate["confirmed"], gone)
        if lost := carry_over(gate["confirmed"], gone):
            kept["confirmed"]["carried"] = lost
    if "batch" in gate:
        kept["batch"] = blank(gate["batch"], gone)
    if "corrections" in gate:
        kept["corrections"] = blank(gate["corrections"], gone)
    if "segments" in gate:
        kept["segments"] = [cast(SegmentComparison, blank(segment, gone)) for segment in gate["segments"]]
    return kept


def blank(comparison: GateComparison, gone: Collection[int]) -> GateComparison:
    """A comparison without its metrics, if the version that it compares with is purged."""
    if comparison["version"] not in gone:
        return comparison.copy()
    return cast(GateComparison, {**comparison, **dict.fromkeys(NUMBERS)})


def carry_over(comparison: GateComparison, gone: Collection[int]) -> float:
    """How much worse a version is than the confirmed version that it was compared with, if that version is purged.

    Otherwise, many small deteriorations could add up again after every erasure. The number is rounded as windows are,
    and what earlier erasures left is added to it.
    """
    before, relative = comparison.get("carried", 0.0), comparison["relative"]
    first, error = comparison["champion"], comparison["difference_se"]
    if comparison["version"] not in gone or relative is None or not first or error is None:
        return before
    figures = {"relative": relative, f"relative{ERROR_SUFFIX}": error / abs(first), "rows": comparison["rows"]}
    rounded = coarse(figures, SystemRandom().random)["relative"]
    return max(0.0, significant((1 + before) * (1 + rounded) - 1, 3))


def round_windows(session: Session, model_id: int, gone: Collection[int], positions: Collection[int]) -> None:
    """Leave only rounded metrics of windows that depend on an erased person, and nothing of the person's own examples.

    Those are the windows in which a purged version scored, and the windows that contain the person's examples.
    """
    draw = SystemRandom().random  # the numbers are not kept
    query = select(QualityWindow).where(QualityWindow.model_id == model_id, QualityWindow.rounded.is_(False))
    ordered = sorted(positions)
    for window in session.scalars(query):
        contained = bisect_right(ordered, window.last_position) > bisect_left(ordered, window.first_position)
        if not contained and {window.champion, window.frozen, window.challenger}.isdisjoint(gone):
            continue
        if contained and window.scores is not None:
            take_out(window, ordered)
        if window.rows < MIN_ROUNDED_ROWS:
            session.delete(window)
            continue
        window.metrics = {name: round_metrics(metrics, [window], draw) for name, metrics in window.metrics.items()}
        window.scores, window.rounded = None, True
        window.weight, window.heaviest = significant(window.weight, 2), significant(window.heaviest, 1)


def take_out(window: QualityWindow, positions: Collection[int]) -> None:
    """Take the examples at some positions out of a window, and compute its metrics anew."""
    from core.quality.evaluation_windows import Scores  # imports scipy

    assert window.scores is not None
    scores = Scores.from_bytes(window.scores).without(positions)
    window.rows, window.weight, window.heaviest = len(scores), float(scores.weight.sum()), scores.largest_share()
    window.metrics = scores.metrics()
    if len(scores):
        window.first_position, window.last_position = int(scores.position.min()), int(scores.position.max())


def round_metrics(
    metrics: Mapping[str, float], windows: Sequence[QualityWindow], draw: Draw | None = None
) -> dict[str, float]:
    """Metrics of one or several windows on a grid that hides each single row, and all rows of each subject.

    With `draw`, the grid is random (`coarse`).

    Metrics for which there is no such grid are left out: those without a standard error, as of a single subject, and
    shares if one subject has more than a quarter of the weight.
    """
    weight = sum(window.weight for window in windows)
    # one subject may be the heaviest of every window
    heaviest = sum(window.heaviest * window.weight for window in windows) / weight
    gridded = {
        name
        for name in metrics
        if (heaviest <= MAX_SHARE if name in ROW_AVERAGES else f"{name}{ERROR_SUFFIX}" in metrics)
    }
    chosen = {name: value for name, value in metrics.items() if name.removesuffix(ERROR_SUFFIX) in gridded}
    known = {"rows": sum(window.rows for window in windows), "heaviest": heaviest}
    return {metric: value for metric, value in coarse({**chosen, **known}, draw).items() if metric not in known}
