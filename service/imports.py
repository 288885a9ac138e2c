"""The endpoint of imports: weights that somebody else found become the first version."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.errors import Conflict
from core.jobs import queue
from core.jobs.queries import has_unfinished
from core.ledger.specs import spec_at
from core.models import catalog
from core.models.fields import Positive, Strict
from core.models.training import training_of
from core.tables.jobs import JobKind
from core.versions import imports
from core.versions.queries import newest_number
from service.http.auth import Admin, AuthenticatedRoute
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.jobs.schemas import JobAnswer, job_answer
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models", tags=["Work"], route_class=AuthenticatedRoute)


class UnitsSchema(Strict):
    """In what the weights measure a table's numbers: x enters as (x - mean) / scale, one of each for each column."""

    mean: Annotated[list[float], Field(fail_fast=True)]
    scale: Annotated[list[Positive], Field(fail_fast=True)]


class NewImport(Strict):
    """Weights of a model that was trained elsewhere."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"weights": [0.5, -1.0, 0.2, 0.1]}]})

    weights: Annotated[list[float], Field(min_length=1, fail_fast=True)] = Field(
        description="All of them, flat, in the order in which `.../versions/{n}/weights` has them."
    )
    units: UnitsSchema | None = Field(
        None, description="Of a table's number columns; null: as if the model had been trained on its examples."
    )


@router.post("/{name}/imports", status_code=202, response_model=JobAnswer, responses=problem_responses(404, 409))
def import_weights(name: Name, body: NewImport, caller: Admin, write: Write) -> Response:
    """Make the first version of weights that somebody else found, by one pass over the model's examples. They need not
    be an optimum: what they lack of it is measured, so that later adaptations and certificates are right.
    """

    def keep(session: Session) -> JobAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        spec = spec_at(session, model.id, model.spec, model.head)
        units = None if body.units is None else (body.units.mean, body.units.scale)
        imported = imports.check(spec, body.weights, units)
        if newest_number(session, model.id) or has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
            message = "The model is trained, or about to be: imported weights can only be its first version."
            raise Conflict("model_trained", message)
        if training_of(model).removal is not None:
            message = (
                "Certified removal needs weights that were trained with its perturbation: they cannot be imported."
            )
            raise Conflict("removal_promised", message)
        if model.train_count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
        imports.store(session, model, imported)
        return job_answer(queue.enqueue(session, model, JobKind.ADAPT, write.request_id), model.name)

    return write(caller.credential, 202, keep)
