"""The training options of a model, and the promise of certified removal."""

from pydantic import Field

from core.errors import Invalid
from core.kprior.model.spec import Spec, is_network
from core.models.field_types import Positive, Strict
from core.models.policy import policy_of
from core.tables.models import Model, TrainingDocument


class CertifiedRemovalSchema(Strict):
    """A promise of (epsilon, delta)-certified removal (Guo et al. 2020). It requires noise in the objective."""

    epsilon: Positive = Field(
        1.0, description="Bound on the log-likelihood ratio of a model after a removal and a retrained model."
    )
    delta: float = Field(1e-4, gt=0, lt=1, description="Probability that the bound does not hold.")
    sigma: Positive = Field(1.0, description="Standard deviation of the noise in the objective.")


class TrainingSchema(Strict):
    """Options of training; see `core.kprior.Training`. Linear models use only `seed` and `removal`."""

    learning_rate: Positive = Field(0.003, description="Learning rate of Adam.")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Examples per step.")
    max_epochs: int = Field(100, ge=1, le=100_000, description="Maximum number of epochs of a training from scratch.")
    patience: int = Field(
        5,
        ge=1,
        le=100_000,
        description="Rounds of about 20 steps without progress before the learning rate falls to 0.",
    )
    budget: int = Field(
        24_000, ge=1_000, le=100_000_000, description="Maximum number of single-example gradients in an adaptation."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of all randomness; the same seed gives the same model.")
    removal: CertifiedRemovalSchema | None = Field(
        None, description="Certified removal, for linear and kernel models; null: none."
    )

    def plain(self) -> TrainingDocument:
        """The options as stored in the database."""
        return TrainingDocument(self.model_dump(mode="json"))


def training_of(model: Model) -> TrainingSchema:
    return TrainingSchema.model_validate(model.training)


def retrains_on_erasure(model: Model) -> bool:
    """Whether an erasure retrains the model: by default, networks."""
    return policy_of(model).erasure.retrains(is_network(model.spec["architecture"]))


def check_removal(spec: Spec, training: TrainingSchema) -> None:
    """Raise Invalid if the model does not support certified removal."""
    if training.removal is None:
        return
    regularizer = spec["regularizer"]
    deltas = regularizer["delta"]
    if isinstance(deltas, list):
        penalised = min(deltas) > 0
    elif deltas == "auto":
        penalised = False
    else:
        penalised = min([deltas, *regularizer.get("columns", {}).values()]) > 0 and regularizer["penalize_bias"]
    if is_network(spec["architecture"]) or spec["architecture"]["kind"] == "trees" or not penalised:
        message = "requires a linear or kernel model with penalize_bias true and a delta greater than 0"
        raise Invalid.at(("training", "removal"), "spec_invalid", message)
