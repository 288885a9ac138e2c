"""Deciding how the next version is made. Called by the job `adapt`.

A linear model is adapted, and trained from scratch if its certificate is not good enough. For a network there are
three methods: an adaptation within a budget, a warm descent on all examples, and a retrain. Their costs are predicted
from those of the model's earlier versions (`network_costs.py`). With few examples, a retrain is made at once. Otherwise
the methods are tried in the order of these costs, and the first result that passes its audit becomes the version. An
audit compares with the old network; keeping the old network is never an option, or small changes would be ignored for
ever. A retrain needs no audit: the other methods approximate it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import cast

import structlog
from torch import Tensor

from core.kprior import Cost, Predictor, Result, State, Task, adapt
from core.kprior.adaptation.network import certificate_from_audit
from core.kprior.adaptation.network_survey import Survey, survey_change
from core.kprior.certificate.audit import Audit
from core.kprior.model.spec import frozen_encoder, is_network
from core.kprior.solvers import Watch
from core.ledger.random_rows import LedgerDraw
from core.tables.documents import TrialDocument
from core.tables.versions import Version
from core.versions import imported_weights
from core.versions.drafts import VersionDraft
from worker.job_attempt import JobAttempt, Progress
from worker.versions.builder import NUMERICAL_ERRORS, adapt_tip, complete_draft, import_draft, train_draft
from worker.versions.certificates import publishable
from worker.versions.changes import Changes, changes_since, spec_changes
from worker.versions.column_units import find_units
from worker.versions.network_costs import CostHistory, Trial
from worker.versions.snapshot import ModelSnapshot, Unadaptable

log = structlog.get_logger("worker")

METHOD_NAMES = {"kprior": "the adaptation", "warm": "the warm descent on all examples", "retrain": "the retrain"}


def next_version(attempt: JobAttempt, snapshot: ModelSnapshot) -> VersionDraft:
    """The draft of the version at the snapshot's position: adapted from the tip, or trained if that is not possible."""
    if snapshot.tip is None:
        with snapshot.context.database.read() as session:
            imported = imported_weights.find(session, snapshot.model_id)
        # imported weights may have been trained on data of a person being erased; there is no way to know
        if imported is not None and not snapshot.erasing:
            return import_draft(attempt, snapshot, imported)
        return train_draft(attempt, snapshot, attempt.progress_within(0, 0.9))
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
    """Train from scratch because the adaptation failed, for the reason `why` and at the cost `spent`."""
    if snapshot.erasing and not is_network(snapshot.spec["architecture"]):
        why = "the adaptation could not remove the erased data"  # details could reveal something
    log.info("adaptation_rejected", job=attempt.job_id, reason=why)
    progress = attempt.progress_within(0.5, 0.9)
    if (before := find_old_head(snapshot)) is not None:
        draft = train_draft(attempt, snapshot, progress, start_from=before)
    else:
        draft = train_draft(attempt, snapshot, progress, encoder_of=find_units(snapshot))
    return replace(draft, cost=spent + draft.cost, why=why)


def find_old_head(snapshot: ModelSnapshot) -> State | None:
    """The tip, if only its frozen encoder was replaced by one with as many features. That they mean the same is what
    the caller claims; the training compares the old weights with zero, and its optimum does not depend on the start.

    None if nothing of the tip may be kept: for an erasure, and for a removal that needs a new perturbation.
    """
    ours = frozen_encoder(snapshot.spec)
    if ours is None or snapshot.erasing or snapshot.removal is not None:
        return None
    tip = snapshot.load_or_none(snapshot.tip)
    theirs = None if tip is None else frozen_encoder(tip.spec)
    if tip is None or theirs is None or ours == theirs or tip.spec["target"] != snapshot.spec["target"]:
        return None
    return tip if tip.predictor.size == Predictor(snapshot.spec).size else None


def next_network(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> VersionDraft:
    """The draft of the cheapest method whose result passes its audit."""
    if snapshot.erasing and snapshot.policy.erasure.retrains(network=True):
        # an adapted version would depend on the erased data, and so would the record of what was tried
        return retrain_instead(attempt, snapshot, "the policy asks for it", Cost())
    try:
        trials = NetworkTrials.of(attempt, snapshot, tip)
    except Unadaptable as error:
        return retrain_instead(attempt, snapshot, str(error), Cost())
    spent, tried = trials.survey.cost, []
    for method in sorted(trials.predicted, key=trials.predicted.__getitem__):
        try:
            draft, audit = trials.make(method)
            objection = "" if audit is None else audit.objection
            visits = draft.cost.backward_passes
        except NUMERICAL_ERRORS as error:
            if method == "retrain":
                raise
            draft, objection, visits = None, f"it could not be computed ({type(error).__name__})", 0
        tried.append(trials.describe(method, visits, objection))
        if draft is not None and not objection:
            why = " and ".join(f"{METHOD_NAMES[c.method]} did not pass ({c.objection})" for c in tried if c.objection)
            records = tuple(cast(TrialDocument, asdict(c)) for c in tried)
            return replace(draft, cost=spent + draft.cost, why=why, trials=records)
        spent = spent + (draft.cost if draft is not None else Cost())
        log.info("trial_rejected", job=attempt.job_id, method=method, reason=objection)
    raise AssertionError("a retrain is never rejected")


@dataclass(frozen=True)
class NetworkTrials:
    """The methods for a network's next version, and what they have in common."""

    attempt: JobAttempt
    snapshot: ModelSnapshot
    tip: Version
    changes: Changes
    tasks: list[Task]
    survey: Survey
    predicted: dict[str, int]
    """The predicted cost of each method, in gradients of single examples."""

    @classmethod
    def of(cls, attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> NetworkTrials:
        changes, history = changes_since(attempt, snapshot, tip), CostHistory.read(snapshot)
        if history.favours_retrain(snapshot.training, changes.parent.count, changes.added, changes.removed):
            raise Unadaptable("a training from scratch takes fewer steps than an adaptation")
        left = changes.parent.count - sum(len(chunk) for chunk in changes.removed)
        draw = LedgerDraw(snapshot.context.database, snapshot.model_id, snapshot.spec, tip.position, snapshot.at, left)
        tasks = [*changes.tasks, *spec_changes(snapshot, changes.parent)]
        survey = survey_change(
            changes.parent,
            tasks,
            draw,
            training=snapshot.training,
            holdout=snapshot.holdout,
            watch=watch_visits(attempt.progress_within(0.05, 0.1), "Surveying the remaining examples", 4_000),
        )
        survey = replace(survey, cost=survey.cost + changes.cost)
        predicted = history.predict(snapshot.training, survey, unchanged=tip.position == snapshot.at)
        return cls(attempt, snapshot, tip, changes, tasks, survey, predicted)

    def make(self, method: str) -> tuple[VersionDraft, Audit | None]:
        """The draft of a method and its audit; a retrain needs none."""
        if method == "retrain":
            return train_draft(self.attempt, self.snapshot, self.attempt.progress_within(0.5, 0.9)), None
        if method == "warm":
            return self.make_warm()
        return self.make_adapted()

    def make_warm(self) -> tuple[VersionDraft, Audit]:
        """The draft of a warm start on all examples, and its audit."""
        progress = self.attempt.progress_within(0.3, 0.5)
        draft = train_draft(self.attempt, self.snapshot, progress, start_from=self.changes.parent)
        audit = self.survey.yardstick.measure(draft.state.predictor, draft.state.w, draft.cost)
        certificate = publishable(certificate_from_audit(audit), self.snapshot)
        return replace(draft, certificate=certificate), audit

    def make_adapted(self) -> tuple[VersionDraft, Audit]:
        """The draft of an adaptation within its budget, and its audit."""
        start, parent, cost = time.perf_counter(), self.changes.parent, Cost()
        if self.tip.position == self.snapshot.at:  # only the audit is missing
            result = Result(parent, self.changes.memory, cost, True)
            audit = self.survey.yardstick.measure(parent.predictor, parent.w, cost)
        else:
            result = adapt(
                parent,
                self.changes.memory,
                self.tasks,
                policy=self.snapshot.memory,
                draw=self.survey,
                progress=self.attempt.progress_within(0.1, 0.3),
            )
            assert result.certificate is not None
            assert result.certificate.audit is not None
            audit = result.certificate.audit
            cost.backward_passes = result.cost.backward_passes - self.survey.cost.backward_passes
        cost.seconds = time.perf_counter() - start
        result = replace(result, cost=cost, certificate=certificate_from_audit(audit))
        return complete_draft(self.attempt, self.snapshot, "kprior", self.changes.dataset_digest, result), audit

    def describe(self, method: str, visits: int, objection: str) -> Trial:
        """The record of a method that was tried."""
        if method == "kprior":
            visits += self.survey.cost.backward_passes
        return Trial(
            method=method,
            predicted=self.predicted[method],
            visits=visits,
            count=self.survey.count,
            budget=self.survey.budget,
            objection=objection,
        )


def watch_visits(progress: Progress, phrase: str, total: int) -> Watch:
    """A callback that reports how many of `total` visits a descent has made; raising there stops the descent."""

    def watch(visits: int, _w: Tensor) -> bool:
        progress(min(1.0, visits / total), phrase)
        return False

    return watch
