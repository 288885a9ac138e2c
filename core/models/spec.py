"""What callers may say that a model is: input schema, target family, architecture, regularizer, loss.

Checked here; stored and built as the plain dictionaries of `core.kprior.model.spec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from core.models.fields import Option, Strict, Text, Values, distinct, is_none

if TYPE_CHECKING:  # the engine brings torch, which checking does not need
    from core.kprior.model.spec import Spec

GLM_KINDS = ("linear", "kernel")
"""Architectures whose outputs are linear in their weights; all others are networks."""

RESERVED = {"id", "subject", "y", "weight", "split", "x"}
"""Columns of an example that are not features, in CSV, Arrow and Parquet."""


class VectorInputSchema(Strict):
    """A fixed number of numbers."""

    kind: Literal["vector"]
    dim: int = Field(ge=1, le=100_000)


class ImageInputSchema(Strict):
    """Pixels by channel, row and column: numbers as they are, or bytes 0-255 that the model reads as 0-1."""

    kind: Literal["image"]
    shape: list[Annotated[int, Field(ge=1, le=4096)]] = Field(min_length=3, max_length=3)
    dtype: Literal["float32", "uint8"] = "float32"

    @field_validator("shape")
    @classmethod
    def bounded(cls, shape: list[int]) -> list[int]:
        if shape[0] * shape[1] * shape[2] > 4_000_000:
            raise ValueError("an image may have 4 000 000 numbers at most")
        return shape


class NumberColumnSchema(Strict):
    name: Text
    type: Literal["number"]


class BooleanColumnSchema(Strict):
    name: Text
    type: Literal["boolean"]


class DateColumnSchema(Strict):
    name: Text
    type: Literal["date"]


class CategoryColumnSchema(Strict):
    name: Text
    type: Literal["category"]
    values: Values = Field(min_length=1, max_length=10_000)
    other: bool = Field(True, description="Whether values that are not among them are taken as `other`, or refused.")


ColumnSchema = Annotated[
    NumberColumnSchema | BooleanColumnSchema | DateColumnSchema | CategoryColumnSchema, Field(discriminator="type")
]


class TableInputSchema(Strict):
    """Named columns of numbers, booleans, dates and categories; null is a missing value."""

    kind: Literal["table"]
    columns: list[ColumnSchema] = Field(min_length=1, max_length=10_000, fail_fast=True)

    @field_validator("columns")
    @classmethod
    def named_apart(cls, columns: list[ColumnSchema]) -> list[ColumnSchema]:
        names = [column.name for column in columns]
        distinct(names)
        if taken := RESERVED.intersection(names):
            raise ValueError(f"column name {min(taken)!r} is taken: it means something else in CSV and Arrow")
        return columns


class BinaryTargetSchema(Strict):
    """0 or 1."""

    kind: Literal["binary"]


class ClassesTargetSchema(Strict):
    """One of the given values."""

    kind: Literal["classes"]
    values: Values = Field(min_length=2, max_length=10_000)


class NumberTargetSchema(Strict):
    """Any finite number."""

    kind: Literal["number"]


class CountTargetSchema(Strict):
    """0, 1, 2, ..."""

    kind: Literal["count"]


class LinearArchitectureSchema(Strict):
    """A generalised linear model on monomials of the inputs up to a degree."""

    kind: Literal["linear"]
    degree: int = Field(1, ge=1, le=10, description="2 adds squares and products of two inputs, 3 those of three ...")


class KernelArchitectureSchema(Strict):
    """A generalised linear model on random features of a kernel: a Gaussian process, or an SVM, by its loss."""

    kind: Literal["kernel"]
    kernel: Literal["rbf", "matern"] = "rbf"
    features: int = Field(1024, ge=2, le=100_000, multiple_of=2, description="More are nearer to the kernel itself.")
    lengthscale: float = Field(1.0, gt=0, description="Over which inputs are alike, in the units that the model has.")
    nu: float | None = Field(None, description="How smooth a matern kernel is; 1.5 unless told.", exclude_if=is_none)
    seed: int = Field(0, ge=0, lt=2**31, description="Of the features.")

    @field_validator("nu")
    @classmethod
    def smooth(cls, nu: float | None, info: ValidationInfo) -> float | None:
        if nu is not None and (info.data.get("kernel") != "matern" or nu not in (1.5, 2.5)):
            raise ValueError("is 1.5 or 2.5, and the matern kernel's alone")
        return nu


class MlpArchitectureSchema(Strict):
    """Fully connected layers with ReLU between them."""

    kind: Literal["mlp"]
    hidden: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(
        [100], max_length=20, description="Units of each hidden layer."
    )


class CifarnetArchitectureSchema(Strict):
    """Images: four convolutions, a hidden layer of 512, dropout (Zenke et al. 2017)."""

    kind: Literal["cifarnet"]


class Lenet5ArchitectureSchema(Strict):
    """Images: two convolutions, hidden layers of 120 and 84."""

    kind: Literal["lenet5"]


class PluginArchitectureSchema(Strict):
    """A network from a package that the operator installed; further fields are its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option]

    kind: Literal["plugin"]
    name: Text = Field(description="As the package names it in the entry point group `amend.architectures`.")


class L2RegularizerSchema(Strict):
    """delta/2 |w - toward|^2, added to the sum (not the mean) of all examples' losses."""

    kind: Literal["l2"]
    delta: (
        Annotated[float, Field(ge=0)]
        | Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
    ) = Field(1.0, description="How strongly weights are drawn to 0; a list: one for each weight.")
    penalize_bias: bool = Field(False, description="Whether biases are drawn to 0, too. A list has its own for them.")
    columns: dict[Text, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="Linear models: columns whose weights have another delta, by name, or by their place in a vector.",
        exclude_if=is_none,
    )
    toward: list[float] | None = Field(
        None,
        min_length=1,
        fail_fast=True,
        description="What weights are drawn to in place of 0, a number for each: the weights of another model, say. "
        "Where a table has numbers, in the units of its columns, and for linear models of degree 1.",
        exclude_if=is_none,
    )

    @model_validator(mode="after")
    def one_delta_each(self) -> L2RegularizerSchema:
        if self.columns is not None and isinstance(self.delta, list):
            raise ValueError("columns can have a delta of their own beside one number, not beside a list")
        return self


class OwnLossSchema(Strict):
    """What a target has unless it is told otherwise: `log` for classes, `squared` for numbers, `poisson` for counts."""

    kind: Literal["log", "squared", "poisson"]


class SquaredHingeLossSchema(Strict):
    """max(0, 1 - s f)^2 with s = 1 or -1, for yes and no: a support vector machine. It gives a score and no
    probability.
    """

    kind: Literal["squared_hinge"]


class HuberLossSchema(Strict):
    """Half the squared error up to a threshold, and linear beyond, for numbers: an outlier pulls no harder."""

    kind: Literal["huber"]
    threshold: float = Field(1.35, gt=0, description="In the units of the target.")


def as_object(value: Any) -> Any:
    """`"huber"` is short for `{"kind": "huber"}`."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, (dict, BaseModel)):
        raise ValueError("must be a name or an object")
    return value


InputSchema = Annotated[VectorInputSchema | ImageInputSchema | TableInputSchema, Field(discriminator="kind")]
TargetSchema = Annotated[
    BinaryTargetSchema | ClassesTargetSchema | NumberTargetSchema | CountTargetSchema, Field(discriminator="kind")
]
ArchitectureSchema = Annotated[
    LinearArchitectureSchema
    | KernelArchitectureSchema
    | MlpArchitectureSchema
    | CifarnetArchitectureSchema
    | Lenet5ArchitectureSchema
    | PluginArchitectureSchema,
    Field(discriminator="kind"),
]
RegularizerSchema = L2RegularizerSchema
LossSchema = Annotated[
    Annotated[OwnLossSchema | SquaredHingeLossSchema | HuberLossSchema, Field(discriminator="kind")],
    BeforeValidator(as_object),
]
ClassWeightSchema = Annotated[
    dict[Annotated[str, Field(max_length=200)], Annotated[float, Field(gt=0, le=1e6)]],
    Field(min_length=1, max_length=10_000),
]


class SpecSchema(Strict):
    """The parts of a model that make it the predictor it is."""

    input: InputSchema
    target: TargetSchema
    architecture: ArchitectureSchema = LinearArchitectureSchema(kind="linear", degree=1)
    regularizer: RegularizerSchema = L2RegularizerSchema(kind="l2")
    class_weight: ClassWeightSchema | None = Field(
        None,
        description="What the weight of an example is multiplied by in training, for classes by their text (0 and 1 of"
        " a binary target); 1 for those that are not named. Figures do not count by it.",
        exclude_if=is_none,
    )

    loss: LossSchema | None = Field(
        None,
        description="What training minimises, where that is not the target's own loss. The name alone will do.",
        exclude_if=is_none,
    )

    @model_validator(mode="after")
    def fits(self) -> SpecSchema:
        if self.architecture.kind in ("cifarnet", "lenet5") and self.input.kind != "image":
            raise ValueError(f"the architecture {self.architecture.kind!r} needs image input")
        return self

    def plain(self) -> Spec:
        """The spec as `core.kprior` reads it."""
        return cast("Spec", self.model_dump(mode="json", include=set(SpecSchema.model_fields)))
