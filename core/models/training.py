"""What callers may say of how a model is trained, and what is promised of its removals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from core.errors import Invalid
from core.models.fields import Positive, Strict
from core.models.spec import GLM_KINDS
from core.tables.models import Model, TrainingDocument

if TYPE_CHECKING:  # the engine brings torch, which checking does not need
    from core.kprior.model.spec import Spec


class CertifiedRemovalSchema(Strict):
    """A promise of (epsilon, delta)-certified removal (Guo et al. 2020), bought with noise of deviation sigma."""

    epsilon: Positive = Field(1.0, description="How far apart a model that forgot and one that never knew may be.")
    delta: float = Field(1e-4, gt=0, lt=1, description="The chance that they are further apart.")
    sigma: Positive = Field(1.0, description="Deviation of the noise in the objective.")


class TrainingSchema(Strict):
    """How the solver trains; see `core.kprior.Training`. Linear models use the seed alone, and certified removal."""

    learning_rate: Positive = Field(0.003, description="Adam's.")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Examples of one step.")
    max_epochs: int = Field(100, ge=1, le=100_000, description="Of a training from scratch, at the most.")
    patience: int = Field(
        5, ge=1, le=100_000, description="Rounds of about 20 steps without progress before the rate falls to 0."
    )
    budget: int = Field(
        24_000, ge=1_000, le=100_000_000, description="Gradients of single examples that an adaptation may take."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of all that is random; the same seed gives the same model.")
    removal: CertifiedRemovalSchema | None = Field(
        None, description="Certified removal, for linear and kernel models; null: none."
    )

    def plain(self) -> TrainingDocument:
        """As the database holds it."""
        return TrainingDocument(self.model_dump(mode="json"))


def training_of(model: Model) -> TrainingSchema:
    return TrainingSchema.model_validate(model.training)


def check_removal(spec: Spec, training: TrainingSchema) -> None:
    """Invalid, if certified removal is promised of a model that it does not exist for."""
    if training.removal is None:
        return
    regularizer = spec["regularizer"]
    deltas = regularizer["delta"]
    if isinstance(deltas, list):
        penalised = min(deltas) > 0
    else:
        penalised = min([deltas, *regularizer.get("columns", {}).values()]) > 0 and regularizer["penalize_bias"]
    if spec["architecture"]["kind"] not in GLM_KINDS or not penalised:
        message = "needs a linear or kernel model whose weights are all penalised: penalize_bias true, delta above 0"
        raise Invalid.at(("training", "removal"), "spec_invalid", message)
