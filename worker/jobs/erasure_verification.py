"""Verifying that a model has forgotten people: that its champion was trained without them, and how well."""

from dataclasses import replace

from sqlalchemy.orm import Session
from torch import Tensor

from core.erasure import fitted_encoders, receipt_content
from core.erasure.evidence import Evidence, collect_evidence
from core.erasure.queries import verified_parts
from core.erasure.receipt_content import Familiarity, Outcome
from core.erasure.receipt_text import RESIDUE, WITHDRAWN, describe_outcome, describe_unknown
from core.erasure.version_fates import last_trained_on, trained_positions
from core.kprior import State
from core.kprior.certificate.membership import auc
from core.kprior.passes.row_losses import row_losses
from core.ledger import passes
from core.ledger.layouts import Unreadable
from core.models.policy import policy_of
from core.models.training_options import retrains_on_erasure
from core.promotion.decision import Requester, request_promotion
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.commitments import commit_to
from core.versions.erased_examples import precedes_examples
from core.versions.queries import champion_of, comparison_of, find_version, tip_of
from worker.job_attempt import JobAttempt
from worker.versions.encoding import encode_snapshot
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
            commit_to(tip)  # chooses the salt, from which those of the rows derive
    audits = audit(attempt)
    evidence = sign_tip(attempt) if audits else {}
    with attempt.write() as (session, _job, model):
        tip = tip_of(session, model)
        champion = champion_of(session, model)
        verified, forgot = set(), outcome_of(session, model, tip)
        for part, erasure in verified_parts(session, model):
            if erasure.id in audits:
                verified.add(erasure.id)
                part.version = tip.number if tip else None
                before = receipt_content.read(part)  # written by an earlier attempt, which may have got further
                older = champion is not None and precedes_examples(part, champion.position)
                outcome = describe_unknown(champion) if champion and older else forgot
                if part.positions and fitted_encoders.may_depend_on(session, model, erasure):
                    outcome = replace(outcome, words=outcome.words + RESIDUE)
                proof = evidence.get(outcome.version) if outcome.version else None
                audited, encoder = audits[erasure.id] or before.audit, fitted_encoders.describe(session, model)
                receipt_content.write(
                    part, replace(before, outcome=outcome, evidence=proof, audit=audited, encoder=encoder)
                )
    return verified


def sign_tip(attempt: JobAttempt) -> dict[int, Evidence]:
    """The evidence about the tip, by its number; it takes a pass over all rows of a linear model."""
    attempt.progress(0.6, "Hashing the remaining examples")
    database, store = attempt.context.database, attempt.context.store
    with database.read() as session:
        model = session.get_one(Model, attempt.model_id)
        tip = tip_of(session, model)
    return {} if tip is None else {tip.number: collect_evidence(database, store, model, tip)}


def prefer_retrained(session: Session, model: Model, tip: Version) -> Version:
    """The version to serve: the full retrain, if there is one, of an adapted network, which has no bound."""
    comparison = comparison_of(session, tip) if tip.kind is VersionKind.ADAPTED else None
    unbounded = tip.certificate is None or tip.certificate.kind != "bound"
    if comparison is None or not unbounded or not retrains_on_erasure(model):
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
    encode_snapshot(attempt, snapshot)  # examples may have arrived since the adaptation
    with attempt.context.database.read() as session:
        for part, erasure in verified_parts(session, model):
            before = last_trained_on(session, part)
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
