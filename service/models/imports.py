"""POST /v1/models/{name}/imports: weights that were trained elsewhere become the first version of a model."""

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import Base64Bytes, ConfigDict, Field, model_validator
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Conflict
from core.jobs import queue
from core.jobs.queries import has_unfinished
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.models.field_types import Positive, Strict
from core.models.training_options import training_of
from core.tables.audit import Action
from core.tables.jobs import JobKind
from core.versions import imported_weights
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


Nodes = Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(min_length=1, fail_fast=True)]
Flags = Annotated[list[Annotated[list[bool], Field(fail_fast=True)]], Field(min_length=1, fail_fast=True)]


class SplitsSchema(Strict):
    """The inner nodes of trees, the root first: for each tree, a list with one entry per node."""

    feature: Nodes = Field(description="Index of the input column that a node reads.")
    threshold: Annotated[list[Annotated[list[float], Field(fail_fast=True)]], Field(min_length=1, fail_fast=True)] = (
        Field(description="Values up to the threshold go left.")
    )
    left: Nodes = Field(description="Number of a later node of the tree, or -1 - l for leaf l.")
    right: Nodes = Field(description="Number of a later node of the tree, or -1 - l for leaf l.")
    missing_left: Flags = Field(description="Whether missing values go left.")
    zero_missing: Flags = Field(description="Whether zeros go where missing values go.")
    category_start: Nodes = Field(description="Index of the first of `words` of a node that is a set of categories.")
    category_words: Nodes = Field(description="Number of these words; 0 if the node compares with a threshold.")
    words: Annotated[list[int], Field(fail_fast=True)] = Field(
        description="Sets of categories that go left: bit b of word w of a set stands for value 32 w + b of the column."
    )


class NewImport(Strict):
    """Weights of a model that was trained elsewhere."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"weights": [0.5, -1.0, 0.2, 0.1]}]})

    weights: Annotated[list[float], Field(min_length=1, fail_fast=True)] | None = Field(
        None,
        description="All weights as a flat list, in the order of `GET .../versions/{n}/weights`. Only with `splits` may"
        " they be null: the head of the trees is then trained on the model's examples.",
    )
    tensors: Base64Bytes | None = Field(
        None,
        description="In place of `weights`: a safetensors file in Base64, with the weights `w` and, for a network, "
        "each buffer and frozen parameter as `body.NAME`.",
    )
    units: UnitsSchema | None = Field(
        None, description="Standardisation of number columns. Null: mean and scale of the model's own examples."
    )
    splits: SplitsSchema | None = Field(None, description="The splits of a model with the architecture `trees`.")

    @model_validator(mode="after")
    def one_of_both(self) -> Self:
        missing = self.weights is None and self.tensors is None and self.splits is None
        if missing or (self.tensors is not None and (self.weights is not None or self.splits is not None)):
            raise ValueError("give either `weights` or `tensors`")
        if self.tensors is not None and self.units is not None:
            raise ValueError("`units` belong to `weights`; leave them out with `tensors`")
        return self


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
        if body.tensors is not None:
            imported = imported_weights.read_file(spec, body.tensors)
        else:
            splits = None if body.splits is None else body.splits.model_dump()
            imported = imported_weights.check(spec, body.weights, units, splits)
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
        imported_weights.store(session, model, imported)
        return of_job(queue.enqueue(session, model, JobKind.ADAPT, write.request_id), model.name)

    return write(caller, 202, keep, Action.WEIGHTS_IMPORTED, lambda job: [About(name, job_id=job.id)])
