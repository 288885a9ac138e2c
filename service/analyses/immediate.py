"""Analyses that need no pass over the examples: the request itself computes them."""

from __future__ import annotations

import time
from typing import Any

import torch
from sqlalchemy.orm import Session

from core.analyses import requests
from core.analyses.analysed_model import AnalysedModel
from core.analyses.labelling import report_labelling
from core.analyses.preview import preview
from core.errors import Conflict
from core.kprior import State
from core.kprior.data.schema_conversion import same_schema
from core.kprior.model.spec import frozen_encoder
from core.ledger import passes, unlabelled_examples
from core.ledger.holdout_sample import sample_holdout
from core.ledger.layouts import NotEncoded
from core.ledger.queries import has_taken_out
from core.ledger.spec_history import spec_at
from core.models.engine_options import memory_policy, solver_options
from core.models.policy import policy_of
from core.models.training_options import training_of
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.erased_examples import open_parts
from core.versions.queries import tip_of
from service.analyses.parsing import ParsedRequest
from service.analyses.schemas import LabellingRequest, PreviewRequest
from service.context import Context

Finished = tuple[AnalysedModel, dict[str, Any], dict[str, Any]]
"""The model that was analysed, the result and the cost."""


def compute_now(context: Context, model: Model, request: ParsedRequest) -> Finished | None:
    """The result of an analysis; None if it needs a job."""
    if not isinstance(request.body, (PreviewRequest, LabellingRequest)):
        return None
    try:
        return compute(context, model, request, request.body)
    except NotEncoded:  # a job encodes new examples of the holdout first
        return None if request.pool is None else refuse_pool()


def compute(
    context: Context, model: Model, request: ParsedRequest, body: PreviewRequest | LabellingRequest
) -> Finished | None:
    start = time.perf_counter()
    subject = find_subject(context, model)
    if isinstance(body, LabellingRequest):
        if subject is None:
            return None if request.pool is None else refuse_pool()
        if request.pool is None and frozen_encoder(subject.spec) is not None:
            return None  # encoding the pool may take long
        x, ids = pool_of(context, subject, request)
        result, passes_made = report_labelling(subject, x, ids, body.top)
    else:
        if subject is None:
            return None
        with context.database.read() as session:
            change = requests.resolve_change(session, subject, request.stored)
        found = preview(subject, change)
        if found is None:
            return None
        result, passes_made = found
    return subject, result, {"seconds": time.perf_counter() - start, "data_passes": passes_made}


def is_outdated(session: Session, model: Model, request: ParsedRequest, finished: Finished) -> bool:
    """Whether a result may name examples that were removed, erased or labelled since it was computed.

    The caller's transaction holds the lock on the model's row.
    """
    subject, result, _ = finished
    if has_taken_out(session, model, subject.at):
        return True
    if not isinstance(request.body, LabellingRequest) or request.pool is not None:
        return False
    named = [row["id"] for row in result["rows"]]
    waiting = unlabelled_examples.find(session, model.id, named)
    return any(id not in waiting or waiting[id].restricted for id in named)


def refuse_pool() -> Finished:
    """A posted pool is never stored, so no job can wait with it."""
    message = "The model has changes that no version reflects yet. Adapt it, then send the pool again."
    raise Conflict("changes_pending", message)


def pool_of(context: Context, model: AnalysedModel, request: ParsedRequest) -> tuple[torch.Tensor, Any]:
    """The inputs to choose from, and their ids unless the caller sent the inputs."""
    if request.pool is not None:
        return torch.from_numpy(request.pool), None
    return requests.pending_pool(context.database, model.model_id, model.spec, model.at)


def find_subject(context: Context, model: Model) -> AnalysedModel | None:
    """The model, if its newest version reflects all changes; the last ones are kept in memory for some seconds."""
    with context.database.read() as session:
        tip = require_tip(session, model)
        covered = max(tip.position, model.covered_position) >= model.head
        spec = spec_at(session, model.id, model.spec, model.head)
    if not covered:
        return None
    key = (model.id, tip.number, model.head)
    subject: AnalysedModel | None = context.analysed.get(key)
    if subject is None or subject.policy != policy_of(model):
        subject = load_subject(context, model, tip, spec)
        if subject is not None:
            context.analysed.put(key, subject)
    return subject


def require_tip(session: Session, model: Model) -> Version:
    tip = tip_of(session, model)
    if tip is None:
        raise Conflict("champion_missing", "The model has no version yet. Train it with an adaptation.")
    if open_parts(session, model.id):
        message = "Data of a person is being erased from this model. Request the analysis again when that is done."
        raise Conflict("erasure_in_progress", message)
    return tip


def load_subject(context: Context, model: Model, tip: Version, spec: Any) -> AnalysedModel | None:
    state, policy, database = load_state(context, tip), policy_of(model), context.database
    if state is None or not same_schema(state.spec, spec) or state.spec["architecture"] != spec["architecture"]:
        return None
    with database.read() as session:
        keys = state.memory.key.tolist()
        memory = passes.read_positions(session, model.id, state.spec, keys, tip.position)
    if len(memory) < len(keys):
        return None
    sample = sample_holdout(database, model.id, spec, model.head, policy.evaluation.rows)
    holdout = passes.load_if_small(sample)

    def load(version: Version) -> State | None:
        return load_state(context, version)

    return AnalysedModel(
        database=database,
        model_id=model.id,
        spec=spec,
        at=model.head,
        policy=policy,
        training=solver_options(training_of(model)),
        memory_policy=memory_policy(policy, spec),
        tip=tip,
        state=state,
        memory=memory,
        holdout=holdout,
        subjects=(lambda: sample.outline()[1]) if holdout is sample else (lambda: sample.subjects),
        load=load,
    )


def load_state(context: Context, version: Version) -> State | None:
    """The state of a version; None if it was purged."""
    if not version.sha256 or not context.store.exists(version.file):
        return None
    return State.from_bytes(context.file(version.file, version.sha256))
