"""Endpoints of models."""

from typing import Annotated, cast

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import ledger
from core.audit.entries import About
from core.encoders import uploads
from core.errors import Invalid
from core.jobs import queue, resumption
from core.keys.quotas import check_models
from core.kprior.model.spec import Spec, SpecPart, frozen_encoder, loss_of
from core.ledger.encodings import count_failed
from core.ledger.spec_history import page_changes, restore_columns, spec_at, value_before, with_part
from core.lifecycle import model_deletion
from core.models import catalog, holds
from core.models.policy import patch, policy_of
from core.models.schema_changes import compare_columns
from core.models.training_options import check_removal, training_of
from core.models.validation import check_buildable, check_class_weight, check_policy
from core.tables.audit import Action
from core.tables.ledger import ChangeKind
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.links import model_page
from core.versions.orphan_files import sweep
from core.versions.queries import champion_of, check_challenger, is_withdrawn
from service.context import Context, ContextDep
from service.http.auth import Admin, Reader
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.models.schemas import (
    ChangedResponse,
    ChangeResponse,
    CountsResponse,
    HeldResponse,
    ModelChange,
    ModelMlflowResponse,
    ModelResponse,
    NewModel,
    PolicyPatch,
    ResumedResponse,
    of_change,
)

router = APIRouter(prefix="/v1/models", tags=["Models"], route_class=AuthenticatedRoute)

Name = Annotated[str, Path(description="Name of the model.", max_length=63, examples=["churn"])]


def of_hold(model: Model) -> HeldResponse | None:
    if model.held_at is None:
        return None
    return HeldResponse(since=model.held_at, reason=model.held_reason or "", by=model.held_by or "")


def of_mlflow(model: Model, champion: Version | None, pages: str) -> ModelMlflowResponse | None:
    """Link to MLflow; None until the champion is published there."""
    published = pages and champion is not None and champion.mlflow
    return ModelMlflowResponse(url=model_page(pages, model.name)) if published else None


def of_counts(session: Session, model: Model, spec: Spec) -> CountsResponse:
    encoder = frozen_encoder(spec)
    failed = 0
    if encoder is not None:
        failed = sum(count_failed(session, model, encoder, model.head, holdout) for holdout in (False, True))
    return CountsResponse(
        train=model.train_count,
        holdout=model.holdout_count,
        removed=model.removed_count,
        quarantined=model.quarantined_count,
        unlabelled=model.pending_count,
        encoding_failed=failed,
    )


def covered_position(model: Model, champion: Version | None) -> int:
    """The last change that the champion reflects."""
    if champion is None:
        return 0
    return max(champion.position, model.covered_position if champion.number == model.tip else 0)


def of_model(session: Session, model: Model, context: Context) -> ModelResponse:
    spec = spec_at(session, model.id, model.spec, model.head)
    champion = champion_of(session, model)
    return ModelResponse.model_validate(
        {
            **spec,
            "loss": loss_of(spec),
            "name": model.name,
            "training": model.training,
            "policy": model.policy,
            "counts": of_counts(session, model, spec),
            "head": model.head,
            "champion": model.champion,
            "withdrawn": is_withdrawn(session, model),
            "pending": model.head - covered_position(model, champion),
            "held": of_hold(model),
            "mlflow": of_mlflow(model, champion, context.settings.mlflow_pages),
            "created_at": model.created_at,
        }
    )


@router.post("", status_code=201, response_model=ModelResponse, responses=problem_responses(409))
def create_model(body: NewModel, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Create a model. Its first adaptation trains it."""
    with context.database.read() as session:
        spec = uploads.complete_spec(session, body.plain())
    check_class_weight(spec)
    check_buildable(spec, context.settings.max_parameters)
    check_removal(spec, body.training)
    check_policy(body.policy, spec, given=body.policy.model_fields_set)

    def create(session: Session) -> ModelResponse:
        if caller.models is not None and body.name not in caller.models:
            caller.require_all_models()
        uploads.complete_spec(session, spec, lock=True)  # keeps the encoder from being deleted meanwhile
        check_models(session, caller.key_id, caller.quota)
        model = catalog.create(session, body.name, spec, body.training, body.policy, caller.key_id)
        check_challenger(session, model, body.policy.challenger)
        return of_model(session, model, context)

    return write(caller, 201, create, Action.MODEL_CREATED, About(body.name))


@router.get("", response_model=Page[ModelResponse], responses=problem_responses())
def list_models(caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[ModelResponse]:
    """List the models that the key can see, by name."""
    with context.database.read() as session:
        found = catalog.page(session, caller.models, after or "", limit + 1)
        return page_of(found, limit, lambda model: of_model(session, model, context), lambda model: model.name)


@router.get("/{name}", response_model=ModelResponse, responses=problem_responses(404))
def show_model(name: Name, caller: Reader, context: ContextDep) -> ModelResponse:
    """Get a model: spec, policy, counts, head position, champion and pending changes."""
    with context.database.read() as session:
        return of_model(session, catalog.find(session, name, caller.models), context)


@router.patch("/{name}", response_model=ModelResponse, responses=problem_responses(404))
def change_policy(
    name: Name, body: PolicyPatch, caller: Admin, context: ContextDep, auditor: AuditorDep
) -> ModelResponse:
    """Change fields of the policy. Fields that are not given keep their values."""
    with context.database.write() as session:
        model = catalog.find(session, name, caller.models, lock=True)
        policy = patch(policy_of(model), body.policy)
        check_policy(policy, spec_at(session, model.id, model.spec, model.head), given=body.policy)
        if "challenger" in body.policy:
            check_challenger(session, model, policy.challenger)
        if policy.versions != policy_of(model).versions:
            model.pruned_version = 0  # the next tick checks all versions
        model.policy = policy.plain()
        auditor.record(session, caller, Action.POLICY_CHANGED, About(name))
        return of_model(session, model, context)


@router.delete("/{name}", status_code=204, response_class=Response, responses=problem_responses(404))
def delete_model(name: Name, caller: Admin, context: ContextDep, auditor: AuditorDep) -> None:
    """Delete a model with its examples, versions, jobs and files."""
    with context.database.write() as session:
        model = catalog.find(session, name, caller.models, lock=True)
        model_deletion.delete_model(session, model)
        auditor.record(session, caller, Action.MODEL_DELETED, About(name))
    context.models.clear()
    # After the commit: files without a model are harmless orphans, a model without its files is broken.
    sweep(context.database, context.store)
    context.write_register_files()


@router.post("/{name}/hold", response_model=ModelResponse, responses=problem_responses(404, 409))
def hold_model(name: Name, caller: Admin, write: Write) -> Response:
    """Stop automatic adaptations, retrains and promotions until `resume`. Examples and changes are stored meanwhile;
    requested adaptations and retrains produce candidates; erasures are processed as usual.
    """

    def hold(session: Session) -> ModelResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        holds.hold(session, model, "held manually", caller.key_id)
        return of_model(session, model, write.context)

    return write(caller, 200, hold, Action.MODEL_HELD, About(name))


@router.post("/{name}/resume", response_model=ResumedResponse, responses=problem_responses(404, 409))
def resume_model(name: Name, caller: Admin, write: Write) -> Response:
    """End a hold. The policy applies again, and work that is due starts at once."""

    def resume(session: Session) -> ResumedResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        job = resumption.resume(session, model, write.request_id)
        return ResumedResponse(**dict(of_model(session, model, write.context)), job=job)

    return write(caller, 200, resume, Action.MODEL_RESUMED, About(name))


@router.get("/{name}/changes", response_model=Page[ChangeResponse], responses=problem_responses(404))
def list_changes(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ChangeResponse]:
    """List changes of regularizer, architecture, loss, input and target, and corrections of examples, newest first.
    Added and removed examples are not listed.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        found = page_changes(session, model, parse_cursor(after, model.head + 1), limit + 1)
        return page_of(found, limit, of_change, lambda change: change.last)


@router.post("/{name}/changes", status_code=202, response_model=ChangedResponse, responses=problem_responses(404, 409))
def change_model(name: Name, body: ModelChange, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Change the regularizer, the architecture, the loss, the columns or the classes of a model, or revert such a
    change. Existing examples are converted to the new columns and classes.
    """

    def change(session: Session) -> ChangedResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        spec = spec_at(session, model.id, model.spec, model.head)
        new = body.parts(spec["input"]) if body.revert is None else [value_before(session, model, body.revert)]
        columns: dict[str, list[str]] = {}
        for i, (kind, value) in enumerate(new):
            if kind is ChangeKind.ARCHITECTURE:
                completed = uploads.complete_spec(session, with_part(spec, kind, value), lock=True)
                value = cast(SpecPart, completed["architecture"])
                new[i] = kind, value
            if kind is ChangeKind.INPUT:
                if frozen_encoder(spec) is not None:
                    message = "The columns of a model with an encoder cannot change. Create another model."
                    raise Invalid.at(("input",), "input_incompatible", message)
                columns["added"], columns["dropped"] = compare_columns(spec["input"], value)
                restoring, restored = restore_columns(session, model, value)
                new[i] = kind, restoring
                columns |= {"restored": restored} if restored else {}
            spec = with_part(spec, kind, value)
        check_buildable(spec, context.settings.max_parameters)
        check_removal(spec, training_of(model))
        for kind, value in new:
            ledger.change_spec(session, model, kind, value)
        job = queue.enqueue_adaptation(session, model, write.request_id)
        return ChangedResponse(position=model.head, job=job, **columns)

    response = write(caller, 202, change, Action.MODEL_CHANGED, About(name))
    context.models.clear()
    return response
