"""The job `rebuild`: trains at the position of a purged version, without examples removed since, and promotes it."""

from dataclasses import replace
from functools import partial

from sqlalchemy.orm import Session

from core.jobs.leases import JobLost
from core.lifecycle.rebuild import Remainder, require_rebuildable
from core.promotion.decision import Requester, request_promotion
from core.tables.documents import GateDocument
from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.drafts import VersionDraft
from core.versions.queries import find_version
from worker.job_attempt import JobAttempt, Outdated
from worker.versions.builder import train_draft
from worker.versions.column_units import find_units
from worker.versions.draft_gate import judge_draft
from worker.versions.encoding import encode_snapshot
from worker.versions.recording import record_version
from worker.versions.rejection import warn_about
from worker.versions.snapshot import ModelSnapshot


def rebuild(attempt: JobAttempt) -> None:
    """Train from scratch on what is left of the examples of a purged version, and promote the result."""
    while True:
        try:
            rebuild_once(attempt)
            return
        except Outdated:  # a person was erased meanwhile
            continue


def rebuild_once(attempt: JobAttempt) -> None:
    with attempt.context.database.read() as session:
        job, model = session.get(Job, attempt.job_id), session.get(Model, attempt.model_id)
        if job is None or model is None or job.target is None:
            raise JobLost
        target = find_version(session, model, job.target)
        found = require_rebuildable(session, model, target)
        snapshot = ModelSnapshot.of(attempt.context, session, model, target.position, model.head)
        by = job.requested_by or Requester.PERSON.value
    snapshot = replace(encode_snapshot(attempt, snapshot), count=found.trained)
    draft = train_draft(attempt, snapshot, attempt.progress_within(0, 0.9), encoder_of=find_units(snapshot))
    draft = only_warn(judge_draft(snapshot, draft))
    record_version(attempt, snapshot, draft, partial(settle, target, found, by))


def only_warn(draft: VersionDraft) -> VersionDraft:
    """The draft with a gate that does not reject it, because a person requested it."""
    gate: GateDocument | None = draft.gate
    return draft if gate is None else replace(draft, gate={**gate, "action": "warn"})


def settle(target: Version, found: Remainder, by: str, session: Session, model: Model, version: Version) -> str:
    """Promote the rebuilt version as a rollback; returns the job's message."""
    decision = request_promotion(session, model, version, Requester.PERSON, by)
    warn_about(session, model, version)
    trained = f"trained at position {version.position} on {found.trained} examples"
    gone = found.before - found.left
    without = f", without {gone} removed since" if gone else ""
    return (
        f"Version {version.number} replaces the purged version {target.number}: {trained}{without}; {decision.reason}."
    )
