"""What stands in the JSON columns of jobs, versions and comparisons. Fields that may be missing say so by `total`."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class JobError(TypedDict):
    """Why a job failed, for whoever asked for it."""

    code: str
    detail: str


class MemoryFigures(TypedDict):
    """How much of the past a version remembers."""

    size: int
    fraction: float


class ReliabilityBin(TypedDict):
    """How often a version is right where it says that it is so sure."""

    confidence: float
    accuracy: float
    count: int


class CandidateFigures(TypedDict):
    """One way to make a network's version that was tried; see `worker.versions.candidates.Candidate`."""

    method: str
    predicted: int
    visits: int
    count: int
    budget: int
    objection: str


class EvaluationFigures(TypedDict, total=False):
    """What dashboards draw of a version beyond its metrics."""

    confusion: list[list[int]] | None
    reliability: list[ReliabilityBin]
    coverage: list[ReliabilityBin]
    """Of numbers: how often they are within an interval of which so much is said."""
    frozen: dict[str, float]
    """Metrics of the first version on the same holdout."""
    candidates: list[CandidateFigures]


class AuditFigures(TypedDict, total=False):
    """What was measured of a network; see `core.kprior.Audit`."""

    visits: int
    unseen: int
    unseen_loss: float | None
    unseen_loss_before: float | None
    unseen_error: float | None
    kept_loss: float | None
    kept_loss_before: float | None
    removed: int
    removed_loss: float | None
    expected_loss: float | None
    membership_auc: float | None
    expected_auc: float | None
    auc_error: float | None
    still_named: float | None
    expected_named: float | None
    holdout: bool
    altered: bool
    fit: bool
    shrunk: float


class PromiseFigures(TypedDict):
    """A promise of certified removal, and how much of what it allows is spent."""

    epsilon: float
    delta: float
    allowed: float
    spent: float | None


class CertificateFigures(TypedDict, total=False):
    """How far a version can be from a retrain; see `core.kprior.Certificate`. What is infinite is None: not known."""

    kind: str
    gradient_norm: float | None
    passes: int
    bound: float | None
    relative: float | None
    prediction_bound: float | None
    audit: AuditFigures
    removal: PromiseFigures


class SideFigures(TypedDict):
    """A figure of an adapted version and of a full retrain, on the same rows."""

    adapted: float
    retrained: float
    difference_se: NotRequired[float]


class ComparisonCost(TypedDict):
    """What an adapted version and a full retrain cost."""

    adapted: dict[str, float]
    retrained: dict[str, float]


class ComparisonFigures(TypedDict, total=False):
    """An adapted version and a full retrain side by side."""

    loss: SideFigures
    accuracy: SideFigures
    auc: SideFigures
    f1: SideFigures
    calibration: SideFigures
    rmse: SideFigures
    rows: int
    heaviest: float | None
    disagreement: float | None
    disagreement_se: float | None
    weight_distance: float | None
    cost: ComparisonCost
    speedup: float
    worse: str | None
    took_over: bool
    outcome: str


class MlflowPlace(TypedDict, total=False):
    """Where MLflow shows a version: its run, and its number in the registry. Empty: looked for, and not there."""

    run_id: str
    version: str | None
