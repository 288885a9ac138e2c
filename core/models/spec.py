"""What a model is: input schema, target family, architecture, regularizer. Checked here, built by `core.kprior`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from core.errors import Invalid

RESERVED = {"id", "subject", "y", "split", "x"}
"""Columns of an example that are not features, in CSV, Arrow and Parquet."""

PLAIN = r"^[^\x00-\x1f\x7f]+$"
"""Text without control characters: PostgreSQL stores no NUL, and no reader expects the others."""


def exact(value: Any) -> Any:
    """JSON's true is no number, though Python takes it for one."""
    if isinstance(value, bool):
        raise ValueError("must be a number or text, not true or false")
    return value


Text = Annotated[StrictStr, Field(min_length=1, max_length=200, pattern=PLAIN)]
Value = Annotated[StrictInt | Text, BeforeValidator(exact)]
Option = bool | int | float | Text | Annotated[list[int | float | Text], Field(max_length=1000)] | None
"""What an option of a plugin may be: nothing nested."""
Positive = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Base of all parts of a request: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


def distinct(values: list[Any]) -> list[Any]:
    # by their text: CSV and the names of probabilities have no other form
    if len({str(v) for v in values}) < len(values):
        raise ValueError("must differ from each other")
    return values


Values = Annotated[list[Value], Field(fail_fast=True), AfterValidator(distinct)]


class VectorInput(Strict):
    """A fixed number of numbers."""

    kind: Literal["vector"]
    dim: int = Field(ge=1, le=100_000)


class ImageInput(Strict):
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


class NumberColumn(Strict):
    name: Text
    type: Literal["number"]


class CategoryColumn(Strict):
    name: Text
    type: Literal["category"]
    values: Values = Field(min_length=1, max_length=10_000)


class TableInput(Strict):
    """Named columns of numbers and categories; null is a missing value."""

    kind: Literal["table"]
    columns: list[Annotated[NumberColumn | CategoryColumn, Field(discriminator="type")]] = Field(
        min_length=1, max_length=10_000, fail_fast=True
    )

    @field_validator("columns")
    @classmethod
    def named_apart(cls, columns: list[NumberColumn | CategoryColumn]) -> list[NumberColumn | CategoryColumn]:
        names = [column.name for column in columns]
        distinct(names)
        if taken := RESERVED.intersection(names):
            raise ValueError(f"column name {min(taken)!r} is taken: it means something else in CSV and Arrow")
        return columns


class BinaryTarget(Strict):
    """0 or 1."""

    kind: Literal["binary"]


class ClassesTarget(Strict):
    """One of the given values."""

    kind: Literal["classes"]
    values: Values = Field(min_length=2, max_length=10_000)


class NumberTarget(Strict):
    """Any finite number."""

    kind: Literal["number"]


class CountTarget(Strict):
    """0, 1, 2, ..."""

    kind: Literal["count"]


class LinearArchitecture(Strict):
    """A generalised linear model on monomials of the inputs up to a degree."""

    kind: Literal["linear"]
    degree: int = Field(1, ge=1, le=10, description="2 adds squares and products of two inputs, 3 those of three ...")


class MlpArchitecture(Strict):
    """Fully connected layers with ReLU between them."""

    kind: Literal["mlp"]
    hidden: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(
        [100], max_length=20, description="Units of each hidden layer."
    )


class CifarnetArchitecture(Strict):
    """Images: four convolutions, a hidden layer of 512, dropout (Zenke et al. 2017)."""

    kind: Literal["cifarnet"]


class Lenet5Architecture(Strict):
    """Images: two convolutions, hidden layers of 120 and 84."""

    kind: Literal["lenet5"]


class PluginArchitecture(Strict):
    """A network from a package that the operator installed; further fields are its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option]

    kind: Literal["plugin"]
    name: Text = Field(description="As the package names it in the entry point group `amend.architectures`.")


class L2Regularizer(Strict):
    """delta/2 |w|^2, added to the sum (not the mean) of all examples' losses."""

    kind: Literal["l2"]
    delta: (
        Annotated[float, Field(ge=0)]
        | Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
    ) = Field(1.0, description="How strongly weights are drawn to 0; a list: one for each weight.")
    penalize_bias: bool = Field(False, description="Whether biases are drawn to 0, too. A list has its own for them.")


Input = Annotated[VectorInput | ImageInput | TableInput, Field(discriminator="kind")]
Target = Annotated[BinaryTarget | ClassesTarget | NumberTarget | CountTarget, Field(discriminator="kind")]
Architecture = Annotated[
    LinearArchitecture | MlpArchitecture | CifarnetArchitecture | Lenet5Architecture | PluginArchitecture,
    Field(discriminator="kind"),
]
Regularizer = L2Regularizer


class CertifiedRemoval(Strict):
    """A promise of (epsilon, delta)-certified removal (Guo et al. 2020), bought with noise of deviation sigma."""

    epsilon: Positive = Field(1.0, description="How far apart a model that forgot and one that never knew may be.")
    delta: float = Field(1e-4, gt=0, lt=1, description="The chance that they are further apart.")
    sigma: Positive = Field(1.0, description="Deviation of the noise in the objective.")


class Training(Strict):
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
    removal: CertifiedRemoval | None = Field(None, description="Certified removal, for linear models; null: none.")


class Spec(Strict):
    """The parts of a model that make it the predictor it is."""

    input: Input
    target: Target
    architecture: Architecture = LinearArchitecture(kind="linear", degree=1)
    regularizer: Regularizer = L2Regularizer(kind="l2")

    @model_validator(mode="after")
    def fits(self) -> Spec:
        if self.architecture.kind in ("cifarnet", "lenet5") and self.input.kind != "image":
            raise ValueError(f"the architecture {self.architecture.kind!r} needs image input")
        return self

    def plain(self) -> dict[str, Any]:
        """The spec as `core.kprior` reads it."""
        return self.model_dump(mode="json")


def check_removal(spec: dict[str, Any], training: dict[str, Any]) -> None:
    """Invalid, if certified removal is promised of a model that it does not exist for."""
    if training.get("removal") is None:
        return
    deltas = spec["regularizer"]["delta"]
    penalised = min(deltas) > 0 if isinstance(deltas, list) else deltas > 0 and spec["regularizer"]["penalize_bias"]
    if spec["architecture"]["kind"] != "linear" or not penalised:
        message = "needs a linear model whose weights are all penalised: penalize_bias true, delta above 0"
        raise Invalid.at(("training", "removal"), "spec_invalid", message)


def shape_of(given: dict[str, Any]) -> tuple[int, ...]:
    """The shape of one raw input."""
    if given["kind"] == "vector":
        return (given["dim"],)
    return tuple(given["shape"]) if given["kind"] == "image" else (len(given["columns"]),)
