"""Endpoints of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import ledger
from core.erasure import deleted_models
from core.jobs import holds, queue
from core.kprior.model.spec import loss_of
from core.ledger.specs import page_changes, spec_at, value_before, with_part
from core.models import catalog
from core.models.building import check_buildable, check_class_weight
from core.models.policy import patch, policy_of
from core.models.schema_changes import compare_columns
from core.models.training import check_removal, training_of
from core.tables.ledger import ChangeKind
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.links import model_page
from core.versions.orphans import sweep
from core.versions.queries import champion_of, is_withdrawn
from service.context import Context, ContextDep
from service.http.auth import Admin, AuthenticatedRoute, Reader
from service.http.pages import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.models.schemas import (
    ChangeAnswer,
    ChangedAnswer,
    Counts,
    HeldAnswer,
    ModelAnswer,
    ModelChange,
    ModelMlflowAnswer,
    NewModel,
    PolicyPatch,
    ResumedAnswer,
    of_change,
)

router = APIRouter(prefix="/v1/models", tags=["Models"], route_class=AuthenticatedRoute)

Name = Annotated[str, Path(description="The model's name.", max_length=63, examples=["churn"])]


def hold_answer(model: Model) -> HeldAnswer | None:
    if model.held_at is None:
        return None
    return HeldAnswer(since=model.held_at, why=model.held_why or "", by=model.held_by or "")


def mlflow_answer(model: Model, champion: Version | None, pages: str) -> ModelMlflowAnswer | None:
    """Once a version was told of: before that MLflow has no such page."""
    told = pages and champion is not None and champion.mlflow
    return ModelMlflowAnswer(url=model_page(pages, model.name)) if told else None


def model_answer(session: Session, model: Model, context: Context) -> ModelAnswer:
    spec = spec_at(session, model.id, model.spec, model.head)
    champion = champion_of(session, model)
    return ModelAnswer.model_validate(
        {
            **spec,
            "loss": loss_of(spec),
            "name": model.name,
            "training": model.training,
            "policy": model.policy,
            "counts": Counts(train=model.train_count, holdout=model.holdout_count, removed=model.removed_count),
            "head": model.head,
            "champion": model.champion,
            "withdrawn": is_withdrawn(session, model),
            "pending": model.head - (champion.position if champion else 0),
            "held": hold_answer(model),
            "mlflow": mlflow_answer(model, champion, context.settings.mlflow_pages),
            "created_at": model.created_at,
        }
    )


@router.post("", status_code=201, response_model=ModelAnswer, responses=problem_responses(409))
def create_model(body: NewModel, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Create a model. It is trained by its first adaptation."""
    spec = body.plain()
    check_class_weight(spec)
    check_buildable(spec, context.settings.max_parameters)
    check_removal(spec, body.training)

    def create(session: Session) -> ModelAnswer:
        if caller.models is not None and body.name not in caller.models:
            caller.require_all_models()
        return model_answer(session, catalog.create(session, body.name, spec, body.training, body.policy), context)

    return write(caller.credential, 201, create)


@router.get("", response_model=Page[ModelAnswer], responses=problem_responses())
def list_models(caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[ModelAnswer]:
    """The models that this key can see, by name."""
    with context.database.read() as session:
        found = catalog.page(session, caller.models, after or "", limit + 1)
        return page_of(found, limit, lambda model: model_answer(session, model, context), lambda model: model.name)


@router.get("/{name}", response_model=ModelAnswer, responses=problem_responses(404))
def show_model(name: Name, caller: Reader, context: ContextDep) -> ModelAnswer:
    """Spec, policy, counts, head position, champion and pending changes."""
    with context.database.read() as session:
        return model_answer(session, catalog.find(session, name, caller.models), context)


@router.patch("/{name}", response_model=ModelAnswer, responses=problem_responses(404))
def change_policy(name: Name, body: PolicyPatch, caller: Admin, context: ContextDep) -> ModelAnswer:
    """Change some fields of the policy; the others stay."""
    with context.database.write() as session:
        model = catalog.find(session, name, caller.models, lock=True)
        model.policy = patch(policy_of(model), body.policy).plain()
        return model_answer(session, model, context)


@router.delete("/{name}", status_code=204, response_class=Response, responses=problem_responses(404))
def delete_model(name: Name, caller: Admin, context: ContextDep) -> None:
    """Delete a model and everything it owns: examples, versions, jobs, files."""
    with context.database.write() as session:
        model = catalog.find(session, name, caller.models, lock=True)
        deleted_models.delete_model(session, model)
    context.models.clear()
    # after the commit: files without a model are orphans, a model without its files would be broken
    sweep(context.database, context.store)


@router.post("/{name}/hold", response_model=ModelAnswer, responses=problem_responses(404, 409))
def hold_model(name: Name, caller: Admin, write: Write) -> Response:
    """Stop what is done by itself: no adaptation, retrain or promotion until `resume`. What comes meanwhile is kept and
    waits; adaptations and retrains that are asked for make candidates; erasures are carried out all the same.
    """

    def hold(session: Session) -> ModelAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        holds.hold(session, model, "held by hand", caller.key_id)
        return model_answer(session, model, write.context)

    return write(caller.credential, 200, hold)


@router.post("/{name}/resume", response_model=ResumedAnswer, responses=problem_responses(404, 409))
def resume_model(name: Name, caller: Admin, write: Write) -> Response:
    """End a hold: the policy is carried out again, and what is due by now begins at once."""

    def resume(session: Session) -> ResumedAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        job = holds.resume(session, model, write.request_id)
        return ResumedAnswer(**dict(model_answer(session, model, write.context)), job=job)

    return write(caller.credential, 200, resume)


@router.get("/{name}/changes", response_model=Page[ChangedAnswer], responses=problem_responses(404))
def list_changes(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ChangedAnswer]:
    """Changes of regularizer, architecture, loss, input and target, and corrections of examples, the newest first.
    Examples that were added or removed are not among them.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        found = page_changes(session, model, parse_cursor(after, model.head + 1), limit + 1)
        return page_of(found, limit, of_change, lambda change: change.last)


@router.post(
    "/{name}/changes",
    status_code=202,
    response_model=ChangeAnswer,
    responses=problem_responses(404, 409),
)
def change_model(name: Name, body: ModelChange, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Give the model another regularizer, architecture or loss, other columns or classes; or undo such a change by
    another one. Examples from before are read as the new columns and classes have them.
    """

    def change(session: Session) -> ChangeAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        spec = spec_at(session, model.id, model.spec, model.head)
        new = body.parts() if body.revert is None else [value_before(session, model, body.revert)]
        added: list[str] | None = None
        dropped: list[str] | None = None
        for kind, value in new:
            before, spec = spec, with_part(spec, kind, value)
            if kind is ChangeKind.INPUT:
                added, dropped = compare_columns(before["input"], value)
        check_buildable(spec, context.settings.max_parameters)
        check_removal(spec, training_of(model))
        for kind, value in new:
            ledger.change_spec(session, model, kind, value)
        job = queue.enqueue_adaptation(session, model, write.request_id)
        return ChangeAnswer(position=model.head, job=job, added=added, dropped=dropped)

    answer = write(caller.credential, 202, change)
    context.models.clear()
    return answer
