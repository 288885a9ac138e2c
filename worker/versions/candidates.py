"""Which way the next version is made. Called by the job `adapt`.

A linear model is adapted, and trained from scratch if its certificate is not good enough. A network has three
candidates: the adaptation within its budget, a warm descent on all examples, a retrain. Each has a predicted cost, from
what the model's versions took before; they are tried from the cheapest on, and the first whose figures pass is the
version. The yardstick is doing nothing, which is no candidate: small changes would be passed over for ever. A retrain
needs no figures: it is what the others stand in for.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import cast

import structlog
from torch import Tensor

from core.kprior import Cost, Task, adapt
from core.kprior.adaptation.network import certificate_from_audit
from core.kprior.adaptation.survey import Survey, survey_change
from core.kprior.certificate.network import Audit
from core.kprior.model.encoders import TableEncoder
from core.kprior.model.spec import is_network
from core.kprior.solvers import Watch
from core.kprior.solvers.budget import warm_visits
from core.ledger.drawing import LedgerDraw
from core.ledger.specs import spec_at
from core.tables.figures import CandidateFigures
from core.tables.models import Model
from core.tables.versions import Version
from core.versions import imports
from core.versions.history import VersionDraft
from core.versions.queries import MAX_NUMBER, page_versions
from worker.attempt import JobAttempt, Progress
from worker.versions.builder import NUMERICAL_ERRORS, adapt_tip, complete_draft, import_draft, train_draft
from worker.versions.certificates import certificate_json
from worker.versions.changes import Changes, changes_since, spec_changes
from worker.versions.snapshot import ModelSnapshot, Unadaptable
from worker.versions.units import find_units

log = structlog.get_logger("worker")

DEFAULT_EPOCHS = 30
"""Of a training, until one was measured."""
DEFAULT_BUDGET_FRACTION = 0.6
"""What an adaptation takes of its budget, until some were measured: most end after the first stage."""
HISTORY_VERSIONS = 20
"""The newest versions, whose measured costs predict the next ones."""
METHOD_NAMES = {"kprior": "the adaptation", "warm": "the warm descent on all examples", "retrain": "the retrain"}


@dataclass(frozen=True)
class Candidate:
    """One that was tried."""

    method: str
    predicted: int
    """Gradients of single examples that it was thought to take."""
    visits: int
    """Those that it took."""
    count: int
    """Examples that it stands for."""
    budget: int
    """Gradients that the adaptation might have taken."""
    objection: str = ""
    """Why it was not taken."""


def next_version(attempt: JobAttempt, snapshot: ModelSnapshot) -> VersionDraft:
    """The version that stands for the ledger up to `at`: made from the tip, or trained if that will not do."""
    if snapshot.tip is None:
        with snapshot.context.database.read() as session:
            imported = imports.find(session, snapshot.model_id)
        # whoever is being erased may be in the weights: nobody here can tell
        if imported is not None and not snapshot.erasing:
            return import_draft(attempt, snapshot, imported)
        return train_draft(attempt, snapshot, attempt.part(0, 0.9))
    if is_network(snapshot.spec["architecture"]):
        return next_network(attempt, snapshot, snapshot.tip)
    spent = Cost()
    try:
        draft, why = adapt_tip(attempt, snapshot, snapshot.tip)
        if not why:
            return draft
        spent = draft.cost
    except Unadaptable as error:
        why = str(error)
    except NUMERICAL_ERRORS as error:
        why = f"the adaptation could not be computed ({type(error).__name__})"
    return retrain_instead(attempt, snapshot, why, spent)


def retrain_instead(attempt: JobAttempt, snapshot: ModelSnapshot, why: str, spent: Cost) -> VersionDraft:
    """Train from scratch, after what was tried before in vain."""
    if snapshot.erasing:
        why = "people are erased, and the adaptation was not clean of them"  # how it was not would tell something
    log.info("the adaptation gives way to a retrain", job=attempt.job_id, reason=why)
    units = find_units(snapshot)
    encoder = units.predictor.encoder if units is not None else None
    if snapshot.erasing and not (isinstance(encoder, TableEncoder) and encoder.is_plain):
        units = None  # whoever is erased may be in them
    draft = train_draft(attempt, snapshot, attempt.part(0.5, 0.9), encoder_of=units)
    return replace(draft, cost=spent + draft.cost, why=why)


def next_network(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> VersionDraft:
    """The first candidate that passes, from the cheapest on."""
    try:
        attempts = NetworkTrials.of(attempt, snapshot, tip)
    except Unadaptable as error:
        return retrain_instead(attempt, snapshot, str(error), Cost())
    spent, tried = attempts.known.cost, []
    for method in sorted(attempts.predicted, key=attempts.predicted.__getitem__):
        try:
            draft, audit = attempts.make(method)
            objection = "" if audit is None else audit.objection
            visits = draft.cost.backward_passes
        except NUMERICAL_ERRORS as error:
            if method == "retrain":
                raise
            draft, objection, visits = None, f"it could not be computed ({type(error).__name__})", 0
        tried.append(attempts.candidate(method, visits, objection))
        if draft is not None and not objection:
            why = " and ".join(f"{METHOD_NAMES[c.method]} did not pass ({c.objection})" for c in tried if c.objection)
            candidates = tuple(cast(CandidateFigures, asdict(c)) for c in tried)
            return replace(draft, cost=spent + draft.cost, why=why, candidates=candidates)
        spent = spent + (draft.cost if draft is not None else Cost())
        log.info("a candidate was not taken", job=attempt.job_id, method=method, reason=objection)
    raise AssertionError("a retrain is always taken")


@dataclass(frozen=True)
class NetworkTrials:
    """What all candidates of a network begin with."""

    attempt: JobAttempt
    snapshot: ModelSnapshot
    tip: Version
    changes: Changes
    tasks: list[Task]
    known: Survey
    predicted: dict[str, int]
    """What each method is thought to take."""

    @classmethod
    def of(cls, attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> NetworkTrials:
        changes = changes_since(attempt, snapshot, tip)
        left = changes.parent.count - sum(len(chunk) for chunk in changes.removed)
        draw = LedgerDraw(snapshot.context.database, snapshot.model_id, snapshot.spec, tip.position, snapshot.at, left)
        tasks = [*changes.tasks, *spec_changes(snapshot, changes.parent)]
        known = survey_change(
            changes.parent,
            tasks,
            draw,
            training=snapshot.training,
            holdout=snapshot.holdout,
            watch=watch_visits(attempt.part(0.05, 0.1), "looking what is left", 4_000),
        )
        known = replace(known, cost=known.cost + changes.cost)
        return cls(
            attempt, snapshot, tip, changes, tasks, known, predict_costs(snapshot, known, tip.position == snapshot.at)
        )

    def make(self, method: str) -> tuple[VersionDraft, Audit | None]:
        """A candidate, and what was measured of it; nothing of a retrain."""
        if method == "retrain":
            return train_draft(self.attempt, self.snapshot, self.attempt.part(0.5, 0.9)), None
        if method == "warm":
            progress = self.attempt.part(0.3, 0.5)
            draft = train_draft(self.attempt, self.snapshot, progress, start_from=self.changes.parent)
            state, cost = draft.state, draft.cost
            audit = self.known.yardstick.measure(state.predictor, state.w, cost)
            draft = replace(draft, certificate=certificate_json(certificate_from_audit(audit), self.snapshot))
            return draft, audit
        start, snapshot, cost = time.perf_counter(), self.snapshot, Cost()
        if self.tip.position == snapshot.at:  # all that is wanted is to know how good it is
            state = self.changes.parent
            audit = self.known.yardstick.measure(state.predictor, state.w, cost)
        else:
            result = adapt(
                self.changes.parent,
                self.changes.memory,
                self.tasks,
                policy=snapshot.memory,
                draw=self.known.draw,
                survey=self.known,
                progress=self.attempt.part(0.1, 0.3),
            )
            assert result.certificate is not None
            assert result.certificate.audit is not None
            state, audit = result.state, result.certificate.audit
            cost.backward_passes = result.cost.backward_passes - self.known.cost.backward_passes
        cost.seconds = time.perf_counter() - start
        draft = complete_draft(
            self.attempt, snapshot, "kprior", self.changes.dataset, state, cost, certificate_from_audit(audit)
        )
        return draft, audit

    def candidate(self, method: str, visits: int, objection: str) -> Candidate:
        """What is noted of one that was tried."""
        if method == "kprior":
            visits += self.known.cost.backward_passes
        return Candidate(method, self.predicted[method], visits, self.known.count, self.known.budget, objection)


def predict_costs(snapshot: ModelSnapshot, known: Survey, idle: bool) -> dict[str, int]:
    """Gradients of single examples that each method will take, as far as the model's last versions tell.

    `idle` says that nothing has changed. What a warm descent takes is known beforehand.
    """
    with snapshot.context.database.read() as session:
        spec, body = session.get_one(Model, snapshot.model_id).spec, snapshot.spec["architecture"]
        versions = [
            version
            for version in page_versions(session, snapshot.model_id, MAX_NUMBER, HISTORY_VERSIONS)
            if spec_at(session, snapshot.model_id, spec, version.position)["architecture"] == body
        ]
    tried = [Candidate(**found) for v in versions for found in (v.evaluation or {}).get("candidates", [])]
    fractions = [c.visits / max(1, c.budget) for c in tried if c.method == "kprior" and c.visits]
    epochs = [c.visits / max(1, c.count) for c in tried if c.method == "retrain"]
    # of a training that had no rivals the version itself tells
    epochs += [epochs_of(version) for version in versions if version.method == "retrain"]
    adaptation = 0.0 if idle else min(1.0, median(fractions[:5])) if fractions else DEFAULT_BUDGET_FRACTION
    return {
        "kprior": round(adaptation * known.budget),
        "warm": warm_visits(known.count) + known.count,
        "retrain": round((epochs[0] if epochs else min(DEFAULT_EPOCHS, snapshot.training.max_epochs)) * known.count),
    }


def epochs_of(version: Version) -> float:
    """How often a version's training saw each example."""
    memory = version.memory
    return float(version.cost["backward_passes"] * memory["fraction"] / max(1, memory["size"]))


def watch_visits(progress: Progress, phrase: str, total: int) -> Watch:
    """Tells how far a descent is; it stops when that raises."""

    def look(visits: int, _w: Tensor) -> bool:
        progress(min(1.0, visits / total), phrase)
        return False

    return look
