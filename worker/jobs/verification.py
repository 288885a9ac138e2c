"""Showing that a model has forgotten people: the version without them is the champion, and this is how near it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from core.erasure import fates
from core.erasure.requests import open_parts
from core.jobs import holds
from core.kprior import State
from core.kprior.certificate.membership import auc
from core.kprior.passes.losses import row_losses
from core.ledger import passes
from core.ledger.queries import batched
from core.models.policy import policy_of
from core.tables.erasures import Erasure, Part
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.versions import history
from core.versions.queries import find_version
from core.versions.rounding import coarse_certificate
from worker.attempt import JobAttempt
from worker.versions.snapshot import ModelSnapshot


def verify(attempt: JobAttempt) -> set[str]:
    """Make sure that the version without the people is the champion, and note how near to a retrain it is.

    The erasures whose people it does not know; of later ones the next job takes care.
    """
    attempt.progress(0.5, "checking the certificate")
    with attempt.write() as (session, _job, model):
        tip = session.get(Version, (model.id, model.tip)) if model.tip else None
        if ready(session, model) and tip is not None:
            tip = better(session, model, tip)
            champion = session.get(Version, (model.id, model.champion)) if model.champion else None
            # one that was made before any of them came never knew them, and may stay
            known = champion and any(champion.position >= part.first for part, _ in ready(session, model))
            if known and model.champion != tip.number:
                history.promote(session, model, tip, by="erasure")
                holds.note_erasure(model, tip.number)
    audited = audit(attempt)
    with attempt.write() as (session, _job, model):
        tip = session.get(Version, (model.id, model.tip)) if model.tip else None
        champion = session.get(Version, (model.id, model.champion)) if model.champion else None
        verified, forgot = set(), how(session, model, tip)
        for part, erasure in ready(session, model):
            if erasure.id in audited:
                verified.add(erasure.id)
                part.version = tip.number if tip else None
                before = part.figures or {}  # of an attempt that got further
                older = champion is not None and champion.position < part.first
                told = unknown_to(champion) if champion and older else forgot
                part.figures = {**before, **told, "audit": audited[erasure.id] or before.get("audit")}
    return verified


def ready(session: Session, model: Model) -> Sequence[tuple[Part, Erasure]]:
    """The erasures whose people the champion does not know; of later ones the next job takes care."""
    tip = session.get(Version, (model.id, model.tip)) if model.tip else None
    return [(p, e) for p, e in open_parts(session, model.id) if tip is None or p.removed <= tip.position]


def better(session: Session, model: Model, tip: Version) -> Version:
    """The retrained version in the place of an adapted network, for which there is no bound, if there is one."""
    comparison = compared(session, tip) if tip.kind is VersionKind.ADAPTED else None
    unbounded = (tip.certificate or {}).get("kind") != "bound"
    if comparison is None or not unbounded or not policy_of(model).erasure.retrain:
        return tip
    return find_version(session, model, comparison.retrained)


def unknown_to(champion: Version) -> dict[str, Any]:
    """What a receipt says where the version in use is older than the person's first example."""
    words = "the version in use was made before this data came, and never knew it"
    return {"method": "unknown", "words": words, "version": champion.number, "sha256": champion.sha256}


def how(session: Session, model: Model, version: Version | None) -> dict[str, Any]:
    """What a receipt says of the way in which a model forgot."""
    if version is None:
        words = "nothing was ever trained on it, or nothing is left to predict from: the model answers nothing"
        return {"method": "withdrawn", "words": words}
    certificate = version.certificate or {}
    if certificate.get("kind") == "measured":  # of a network: what it has not is not spoken of
        certificate = {name: value for name, value in coarse_certificate(certificate).items() if value is not None}
    told = {"version": version.number, "sha256": version.sha256, "certificate": certificate or None}
    if (comparison := compared(session, version)) is not None:
        told["disagreement"] = comparison.figures["disagreement"]
    if version.kind is VersionKind.TRAINED:
        return {"method": "retrained", "words": "retrained without this data", **told}
    if certificate.get("kind") == "bound":
        perturbed = " with the same perturbation" if certificate.get("removal") else ""
        near = f"within {certificate['bound']:.3g} of a retrain without this data{perturbed}"
        near += "; its weights are those of the data that is left, whatever it had learnt before"
        told["tolerance"] = policy_of(model).tolerance.relative_bound
    else:
        near = (
            "how near to a retrain without this data was measured, not proven: see the certificate and the audit; "
            "its weights came from weights that knew this data, and may hold traces that nothing measured"
        )
    by = " by a descent on all examples that are left" if version.method == "warm" else ""
    return {"method": "adapted", "words": f"adapted{by}; {near}", **told}


def compared(session: Session, version: Version) -> Comparison | None:
    """The comparison of a version, adapted or retrained, with the other one at its position."""
    either = Comparison.retrained if version.kind is VersionKind.TRAINED else Comparison.adapted
    same = select(Comparison).where(Comparison.model_id == version.model_id, either == version.number)
    return session.scalar(same.order_by(Comparison.id.desc()).limit(1))


def audit(attempt: JobAttempt) -> dict[str, dict[str, float] | None]:
    """How well each person's examples can be told from never-seen ones, before and after; None if nobody can say."""
    found: dict[str, dict[str, float] | None] = {}
    strangers: dict[int, tuple[State, Tensor]] = {}
    with attempt.context.database.read() as session:
        model = session.get_one(Model, attempt.model_id)
        snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
        for part, erasure in ready(session, model):
            known = select(Version).where(fates.knew(part), Version.state != VersionState.PURGED)
            before = session.scalar(known.order_by(Version.position.desc(), Version.number.desc()).limit(1))
            found[erasure.id] = None
            if before is None or snapshot.tip is None or model.holdout_count == 0:
                continue
            learnt = trained_on(session, model.id, part.positions, before.position)
            rows = passes.read_positions(session, model.id, snapshot.spec, learnt)
            if len(rows) == 0:
                continue
            chances = {}
            for name, version in (("before", before), ("after", snapshot.tip)):
                if version.number not in strangers and (state := snapshot.load_or_none(version)) is not None:
                    seen = row_losses(state.predictor, state.w, snapshot.holdout)
                    strangers[version.number] = state, seen
                if version.number in strangers:
                    state, seen = strangers[version.number]
                    chances[name] = auc(row_losses(state.predictor, state.w, [rows]), seen)
            # no finer: of a single example, the figure tells its loss among those of the holdout
            found[erasure.id] = {n: round(c, 1) for n, c in chances.items()} if len(chances) == 2 else None
    return found


def trained_on(session: Session, model_id: int, positions: Sequence[int], at: int) -> list[int]:
    """Which examples a version at a position was trained on: only those can be familiar to it."""
    found: list[int] = []
    for some in batched(positions):
        training = (Example.model_id == model_id, ~Example.holdout, Example.position <= at)
        found += session.scalars(select(Example.position).where(*training, Example.position.in_(some)))
    return found
