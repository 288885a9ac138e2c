"""POST /v1/models/{name}/imports: weights that were trained elsewhere become the first version of a model."""

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
from service.http.auth import Admin
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.jobs.schemas import JobResponse, of_job
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models", tags=["Work"], route_class=AuthenticatedRoute)


class UnitsSchema(Strict):
    """Standardisation of the number columns that the weights expect: each x enters as (x - mean) / scale."""

    mean: Annotated[list[float], Field(fail_fast=True)]
    scale: Annotated[list[Positive], Field(fail_fast=True)]


class NewImport(Strict):
    """Weights of a model that was trained elsewhere."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"weights": [0.5, -1.0, 0.2, 0.1]}]})

    weights: Annotated[list[float], Field(min_length=1, fail_fast=True)] = Field(
        description="All weights as a flat list, in the order of `GET .../versions/{n}/weights`."
    )
    units: UnitsSchema | None = Field(
        None, description="Standardisation of number columns. Null: mean and scale of the model's own examples."
    )


@router.post("/{name}/imports", status_code=202, response_model=JobResponse, responses=problem_responses(404, 409))
def import_weights(name: Name, body: NewImport, caller: Admin, write: Write) -> Response:
    """Create the first version from weights that were trained elsewhere, with one pass over the model's examples.

    The weights need not be optimal: the pass measures their gradient, so that later adaptations and certificates are
    correct.
    """

    def keep(session: Session) -> JobResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        spec = spec_at(session, model.id, model.spec, model.head)
        units = None if body.units is None else (body.units.mean, body.units.scale)
        imported = imports.check(spec, body.weights, units)
        if newest_number(session, model.id) or has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
            message = "The model has a version or a training job already. Only the first version can be imported."
            raise Conflict("model_trained", message)
        if training_of(model).removal is not None:
            message = (
                "A model with certified removal must be trained by Amend, because its weights contain a perturbation."
            )
            raise Conflict("removal_promised", message)
        if model.train_count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples. Add examples first.")
        imports.store(session, model, imported)
        return of_job(queue.enqueue(session, model, JobKind.ADAPT, write.request_id), model.name)

    return write(caller.credential, 202, keep)
