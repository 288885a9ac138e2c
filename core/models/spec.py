"""The spec of a model: input, target, architecture, regularizer, loss and class weights.

This is the only declaration of the spec. The engine works with plain dictionaries, whose types
(`core/kprior/model/spec_types.py`) are generated from these classes by `make types`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from core.kprior.data.label_sets import MAX_LABELS
from core.kprior.model.spec import Spec
from core.models.field_types import Option, Strict, Text, Values, distinct, is_none
from core.models.pipeline_steps import TransformSchema
from core.models.sequential_layers import SequentialArchitectureSchema

RESERVED = {"id", "subject", "y", "weight", "split", "time", "source", "x"}
"""Columns of an example that are not features, in CSV, Arrow and Parquet."""


class VectorInputSchema(Strict):
    """A vector of `dim` numbers."""

    kind: Literal["vector"]
    dim: int = Field(ge=1, le=100_000)
    transform: TransformSchema | None = Field(
        None, description="Steps of an imported pipeline that turn the numbers into features.", exclude_if=is_none
    )


class ImageInputSchema(Strict):
    """Pixels by channel, row and column: numbers, or bytes 0-255, which the model scales to 0-1."""

    kind: Literal["image"]
    shape: list[Annotated[int, Field(ge=1, le=4096)]] = Field(min_length=3, max_length=3)
    dtype: Literal["float32", "uint8"] = "float32"

    @field_validator("shape")
    @classmethod
    def bounded(cls, shape: list[int]) -> list[int]:
        if shape[0] * shape[1] * shape[2] > 4_000_000:
            raise ValueError("an image can have at most 4 000 000 numbers")
        return shape


class NumberColumnSchema(Strict):
    """A column of numbers."""

    name: Text
    type: Literal["number"]


class BooleanColumnSchema(Strict):
    """A column of true and false, stored as 1 and 0."""

    name: Text
    type: Literal["boolean"]


class DateColumnSchema(Strict):
    """A column of dates, stored as days since 1970-01-01."""

    name: Text
    type: Literal["date"]


class CategoryColumnSchema(Strict):
    """A column with one of the given values."""

    name: Text
    type: Literal["category"]
    values: Values = Field(min_length=1, max_length=10_000)
    other: bool = Field(True, description="Treat unknown values as one further category; if false, reject them.")


ColumnSchema = Annotated[
    NumberColumnSchema | BooleanColumnSchema | DateColumnSchema | CategoryColumnSchema, Field(discriminator="type")
]


class TableInputSchema(Strict):
    """Named columns of numbers, booleans, dates and categories; null is a missing value."""

    kind: Literal["table"]
    columns: list[ColumnSchema] = Field(min_length=1, max_length=10_000, fail_fast=True)
    transform: TransformSchema | None = Field(
        None, description="Steps of an imported pipeline, in place of Amend's own encoding.", exclude_if=is_none
    )

    @field_validator("columns")
    @classmethod
    def named_apart(cls, columns: list[ColumnSchema]) -> list[ColumnSchema]:
        names = [column.name for column in columns]
        distinct(names)
        if taken := RESERVED.intersection(names):
            raise ValueError(f"the column name {min(taken)!r} is reserved in CSV and Arrow; choose another one")
        return columns


class TextInputSchema(Strict):
    """A text. The encoder of the architecture turns it into numbers."""

    kind: Literal["text"]


class BinaryTargetSchema(Strict):
    """0 or 1, or a probability between them."""

    kind: Literal["binary"]


class ClassesTargetSchema(Strict):
    """One of the given values."""

    kind: Literal["classes"]
    values: Values = Field(min_length=2, max_length=10_000)


class LabelsTargetSchema(Strict):
    """Any of the given values, several at once, or none."""

    kind: Literal["labels"]
    values: Values = Field(min_length=1, max_length=MAX_LABELS)


class NumberTargetSchema(Strict):
    """Any finite number."""

    kind: Literal["number"]
    transform: Literal["log", "log1p"] | None = Field(
        None,
        description="Fit the logarithm of the target (or of 1 + the target); predictions are converted back. Metrics "
        "refer to the logarithm.",
        exclude_if=is_none,
    )


class CountTargetSchema(Strict):
    """0, 1, 2, ..."""

    kind: Literal["count"]


class HashingEncoderSchema(Strict):
    """Counts of the words of a text, by a hash of each word, scaled to length 1: the features of scikit-learn's
    `HashingVectorizer`. It has no state, so it depends on no example.
    """

    kind: Literal["hashing"]
    features: int = Field(4096, ge=2, le=65_536, description="Number of features.")


TrainedOn = Literal["other", "examples"]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class OnnxEncoderSchema(Strict):
    """A network or transformer as an ONNX file, uploaded with `POST /v1/encoders`."""

    kind: Literal["onnx"]
    digest: Digest = Field(description="Digest of the file, as `POST /v1/encoders` returned it.")
    features: int | None = Field(None, ge=1, description="Number of features. Set by the server.", exclude_if=is_none)
    trained_on: TrainedOn | None = Field(
        None,
        description="`other`: the encoder has seen none of the model's examples. `examples`: it was fitted on them. Set"
        " by the server.",
        exclude_if=is_none,
    )


class PluginEncoderSchema(Strict):
    """An encoder of texts from an installed package."""

    kind: Literal["plugin"]
    name: Text = Field(description="Name of the entry point in the group `amend.encoders`.")
    digest: Digest | None = Field(None, description="Digest of its files. Set by the server.", exclude_if=is_none)
    features: int | None = Field(None, ge=1, description="Number of features. Set by the server.", exclude_if=is_none)


EncoderSchema = Annotated[HashingEncoderSchema | OnnxEncoderSchema | PluginEncoderSchema, Field(discriminator="kind")]


class LinearArchitectureSchema(Strict):
    """A generalised linear model on monomials of the inputs up to a degree, or on the features of a frozen encoder."""

    kind: Literal["linear"]
    degree: int = Field(
        1, ge=1, le=10, description="Largest degree of the monomials; 2 adds squares and products of two inputs."
    )
    encoder: EncoderSchema | None = Field(
        None,
        description="Frozen encoder that turns raw inputs into the features of the model. Text input requires one.",
        exclude_if=is_none,
    )

    @model_validator(mode="after")
    def one_kind_of_features(self) -> LinearArchitectureSchema:
        if self.encoder is not None and self.degree != 1:
            raise ValueError("a model with an encoder has degree 1")
        return self


class KernelArchitectureSchema(Strict):
    """A generalised linear model on random features of a kernel; with a hinge loss, a support vector machine."""

    kind: Literal["kernel"]
    kernel: Literal["rbf", "matern"] = "rbf"
    features: int = Field(
        1024,
        ge=2,
        le=100_000,
        multiple_of=2,
        description="Number of random features; more approximate the kernel better.",
    )
    lengthscale: float = Field(1.0, gt=0, description="Distance over which inputs are similar, in standardised units.")
    nu: float | None = Field(
        None, description="Smoothness of the matern kernel, 1.5 (the default) or 2.5.", exclude_if=is_none
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the random features.")

    @field_validator("nu")
    @classmethod
    def smooth(cls, nu: float | None, info: ValidationInfo) -> float | None:
        if nu is not None and (info.data.get("kernel") != "matern" or nu not in (1.5, 2.5)):
            raise ValueError("must be 1.5 or 2.5, and applies to the matern kernel only")
        return nu


class TreesArchitectureSchema(Strict):
    """Boosted trees: LightGBM learns the splits, and the leaves are the features of a generalised linear model."""

    kind: Literal["trees"]
    trees: int = Field(
        100, ge=1, le=10_000, description="Number of trees in total; each class has an equal share of them."
    )
    leaves: int = Field(31, ge=2, le=100_000, description="Maximum number of leaves of a tree.")
    learning_rate: float = Field(0.1, gt=0, le=1, description="Learning rate of the boosting.")
    min_examples: int = Field(20, ge=1, le=1_000_000, description="Minimum number of examples in a leaf.")


class MlpArchitectureSchema(Strict):
    """Fully connected layers with ReLU between them."""

    kind: Literal["mlp"]
    hidden: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(
        [100], max_length=20, description="Number of units of each hidden layer."
    )


class CifarnetArchitectureSchema(Strict):
    """A network for images: four convolutions, a hidden layer of 512 units, dropout (Zenke et al. 2017)."""

    kind: Literal["cifarnet"]


class Lenet5ArchitectureSchema(Strict):
    """A network for images: two convolutions, hidden layers of 120 and 84 units."""

    kind: Literal["lenet5"]


class PluginArchitectureSchema(Strict):
    """A network from an installed package; further fields are its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option]

    kind: Literal["plugin"]
    name: Text = Field(description="Name of the entry point in the group `amend.architectures`.")


class L2RegularizerSchema(Strict):
    """The penalty delta/2 |w - toward|^2, added to the sum (not the mean) of the losses of all examples."""

    kind: Literal["l2"]
    delta: (
        Annotated[float, Field(ge=0)]
        | Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
        | Literal["auto"]
    ) = Field(
        1.0,
        description="Strength of the penalty: one number, or one for each weight. Trees: `auto`, their default, chooses"
        " it in training, on examples that are withheld from boosting.",
    )
    penalize_bias: bool = Field(
        False, description="Penalise biases as well. Has no effect if `delta` is a list, which includes the biases."
    )
    columns: dict[Text, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="Linear models: a different delta for some columns, by name, or by index in a vector.",
        exclude_if=is_none,
    )
    toward: list[float] | None = Field(
        None,
        min_length=1,
        fail_fast=True,
        description="Values that the weights are drawn to instead of 0, for example the weights of another model. For "
        "tables with numbers, in the units of the columns, and only for linear models of degree 1.",
        exclude_if=is_none,
    )

    @model_validator(mode="after")
    def one_delta_each(self) -> L2RegularizerSchema:
        if self.columns is not None and isinstance(self.delta, list):
            raise ValueError("`columns` cannot be combined with a list of deltas; give `delta` as one number")
        return self


class OwnLossSchema(Strict):
    """The default loss of a target: `log` (binary, classes and labels), `squared` (numbers) or `poisson` (counts).
    `squared` also fits a binary target: a ridge classifier, whose `mean` can be below 0 or above 1."""

    kind: Literal["log", "squared", "poisson"]


class SquaredHingeLossSchema(Strict):
    """max(0, 1 - s f)^2 with s = 1 or -1, for binary targets: a support vector machine, which predicts a score instead
    of a probability.
    """

    kind: Literal["squared_hinge"]


class HuberLossSchema(Strict):
    """Half the squared error up to a threshold, and linear beyond it, so that outliers have less influence."""

    kind: Literal["huber"]
    threshold: float = Field(1.35, gt=0, description="Error from which the loss is linear, in the units of the target.")


def as_object(value: Any) -> Any:
    """`"huber"` is short for `{"kind": "huber"}`."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, (dict, BaseModel)):
        raise ValueError("must be a name or an object")
    return value


InputSchema = Annotated[
    VectorInputSchema | ImageInputSchema | TableInputSchema | TextInputSchema, Field(discriminator="kind")
]
TargetSchema = Annotated[
    BinaryTargetSchema | ClassesTargetSchema | LabelsTargetSchema | NumberTargetSchema | CountTargetSchema,
    Field(discriminator="kind"),
]
ArchitectureSchema = Annotated[
    LinearArchitectureSchema
    | KernelArchitectureSchema
    | TreesArchitectureSchema
    | MlpArchitectureSchema
    | CifarnetArchitectureSchema
    | Lenet5ArchitectureSchema
    | SequentialArchitectureSchema
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
    """The parts of a model that determine its predictions."""

    input: InputSchema
    target: TargetSchema
    architecture: ArchitectureSchema = LinearArchitectureSchema(kind="linear", degree=1)
    regularizer: RegularizerSchema = L2RegularizerSchema(kind="l2")
    class_weight: ClassWeightSchema | None = Field(
        None,
        description="Factor for the weight of the examples of a class in training, by the class's text (0 and 1 for a"
        " binary target); 1 for classes that are not listed. Metrics do not depend on it.",
        exclude_if=is_none,
    )

    loss: LossSchema | None = Field(
        None,
        description="Loss to minimise in training; by default, that of the target. A name can replace the object.",
        exclude_if=is_none,
    )

    @model_validator(mode="before")
    @classmethod
    def choose_delta(cls, given: Any) -> Any:
        """The delta of trees is chosen in training, unless it is given."""
        architecture = given.get("architecture") if isinstance(given, dict) else None
        if not isinstance(architecture, dict) or architecture.get("kind") != "trees":
            return given
        regularizer = given.get("regularizer", {"kind": "l2"})
        if not isinstance(regularizer, dict) or "delta" in regularizer:
            return given
        return {**given, "regularizer": {**regularizer, "delta": "auto"}}

    @model_validator(mode="after")
    def fits(self) -> SpecSchema:
        trees = self.architecture.kind == "trees"
        if not trees and self.regularizer.delta == "auto":
            raise ValueError("only trees choose `delta` in training; give it as a number")
        if trees and self.input.kind not in ("table", "vector"):
            raise ValueError("trees require a table or a vector as input")
        if self.architecture.kind in ("cifarnet", "lenet5") and self.input.kind != "image":
            raise ValueError(f"the architecture {self.architecture.kind!r} requires image input")
        encoder = self.architecture.encoder if self.architecture.kind == "linear" else None
        if self.input.kind == "text" and encoder is None:
            raise ValueError("text input requires a linear architecture with an encoder")
        if encoder is not None and encoder.kind != "onnx" and self.input.kind != "text":
            raise ValueError(f"the encoder {encoder.kind!r} requires text input")
        return self

    def plain(self) -> Spec:
        """The spec as `core.kprior` reads it."""
        return cast(Spec, self.model_dump(mode="json", include=set(SpecSchema.model_fields)))
