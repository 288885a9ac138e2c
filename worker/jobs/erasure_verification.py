"""Verifying that a model has forgotten people: that its champion was trained without them, and how well."""

from dataclasses import replace

from sqlalchemy.orm import Session
from torch import Tensor

from core.erasure import report
from core.erasure.queries import last_that_knew, trained_positions, verified_parts
from core.erasure.receipt_text import WITHDRAWN, describe_outcome, describe_unknown
from core.erasure.report import Familiarity, Outcome
from core.kprior import State
from core.kprior.certificate.membership import auc
from core.kprior.passes.row_losses import row_losses
from core.ledger import passes
from core.ledger.layouts import Unreadable
from core.models.policy import policy_of
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.erased_examples import precedes_examples
from core.versions.promotion import Requester, request_promotion
from core.versions.queries import champion_of, comparison_of, find_version, tip_of
from worker.attempt import JobAttempt
from worker.versions.snapshot import ModelSnapshot


def verify(attempt: JobAttempt) -> set[str]:
    """Promote the version that was trained without the people if necessary, and record how close to a retrain it is.

    Returns the ids of the verified erasures; those that arrived later are left to the next job.
    """
    attempt.progress(0.5, "Checking the certificate")
    with attempt.write() as (session, _job, model):
        tip = tip_of(session, model)
        parts = [part for part, _ in verified_parts(session, model)]
        if parts and tip is not None:
            version = prefer_retrained(session, model, tip)
            request_promotion(session, model, version, Requester.ERASURE, people=parts)
    audits = audit(attempt)
    with attempt.write() as (session, _job, model):
        tip = tip_of(session, model)
        champion = champion_of(session, model)
        verified, forgot = set(), outcome_of(session, model, tip)
        for part, erasure in verified_parts(session, model):
            if erasure.id in audits:
                verified.add(erasure.id)
                part.version = tip.number if tip else None
                before = report.read(part)  # written by an earlier attempt, which may have got further
                older = champion is not None and precedes_examples(part, champion.position)
                outcome = describe_unknown(champion) if champion and older else forgot
                report.write(part, replace(before, outcome=outcome, audit=audits[erasure.id] or before.audit))
    return verified


def prefer_retrained(session: Session, model: Model, tip: Version) -> Version:
    """The version to serve: the full retrain, if there is one, of an adapted network, which has no bound."""
    comparison = comparison_of(session, tip) if tip.kind is VersionKind.ADAPTED else None
    unbounded = tip.certificate is None or tip.certificate.kind != "bound"
    if comparison is None or not unbounded or not policy_of(model).erasure.retrain:
        return tip
    retrained = find_version(session, model, comparison.retrained)
    return tip if retrained.state is VersionState.REJECTED else retrained


def outcome_of(session: Session, model: Model, tip: Version | None) -> Outcome:
    """How the model forgot the people whom its tip does not know."""
    if tip is None:
        return WITHDRAWN
    tolerance = policy_of(model).tolerance.relative_bound
    return describe_outcome(tip, comparison_of(session, tip), tolerance)


def audit(attempt: JobAttempt) -> dict[str, Familiarity | None]:
    """How well each person's examples can be told from unseen ones, before and after the erasure.

    By the ids of the erasures; None where it cannot be measured.
    """
    found: dict[str, Familiarity | None] = {}
    strangers: dict[int, tuple[State, Tensor]] = {}
    with attempt.context.database.read() as session:
        model = session.get_one(Model, attempt.model_id)
        snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
        for part, erasure in verified_parts(session, model):
            before = last_that_knew(session, part)
            found[erasure.id] = None
            if before is None or snapshot.tip is None or model.holdout_count == 0:
                continue
            learnt = trained_positions(session, part, before.position)
            try:
                rows = passes.read_positions(session, model.id, snapshot.spec, learnt, snapshot.at)
            except Unreadable:  # their class no longer exists
                continue
            if len(rows) == 0:
                continue
            chances = []
            for version in (before, snapshot.tip):
                state = snapshot.load_or_none(version)
                if version.number not in strangers and state is not None and snapshot.has_schema_of(state):
                    seen = row_losses(state.predictor, state.w, snapshot.holdout)
                    strangers[version.number] = state, seen
                if version.number in strangers:
                    state, seen = strangers[version.number]
                    # rounded: for a single example, the exact figure reveals the rank of its loss in the holdout
                    chances.append(round(auc(row_losses(state.predictor, state.w, [rows]), seen), 1))
            found[erasure.id] = Familiarity(*chances) if len(chances) == 2 else None
    return found
