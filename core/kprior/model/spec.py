"""What a model is, as JSON and state files hold it: plain dictionaries, of which `kind` says the rest.

`core.models.spec` checks what callers send; here are only the types, so that a published model needs nothing more.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class VectorInput(TypedDict):
    """`dim` numbers."""

    kind: Literal["vector"]
    dim: int


class ImageInput(TypedDict):
    """Pixels; `shape` is channels, height, width."""

    kind: Literal["image"]
    shape: list[int]
    dtype: NotRequired[Literal["float32", "uint8"]]
    """How examples are stored; the encoder looks at the tensor instead."""


class NumberColumn(TypedDict):
    """A column of numbers."""

    name: str
    type: Literal["number"]
    was: NotRequired[str]
    """In a change of the input: its name before."""
    default: NotRequired[float | None]
    """In a change of the input: what a new column has in rows from before; None: it is missing there."""


class BooleanColumn(TypedDict):
    """A column of 1 and 0, read as they are."""

    name: str
    type: Literal["boolean"]
    was: NotRequired[str]
    default: NotRequired[bool | None]


class DateColumn(TypedDict):
    """A column of days since 1970-01-01, read as numbers are."""

    name: str
    type: Literal["date"]
    was: NotRequired[str]
    default: NotRequired[None]


class CategoryColumn(TypedDict):
    """A column of the given values."""

    name: str
    type: Literal["category"]
    values: list[int | str]
    other: NotRequired[bool]
    """Whether values that are not among them are taken as `other`, or refused; `core.models.spec` has the default."""
    was: NotRequired[str]
    default: NotRequired[int | str | None]
    merge: NotRequired[dict[str, int | str]]
    """In a change of the input: which value stands for one that is gone."""


Column = NumberColumn | BooleanColumn | DateColumn | CategoryColumn


class TableInput(TypedDict):
    """Columns, any of which may be missing in a row."""

    kind: Literal["table"]
    columns: list[Column]


class BinaryTarget(TypedDict):
    """0 or 1."""

    kind: Literal["binary"]


class ClassesTarget(TypedDict):
    """One of the given values."""

    kind: Literal["classes"]
    values: list[int | str]
    merge: NotRequired[dict[str, int | str]]
    """In a change of the target: which class stands for one that is gone."""


class NumberTarget(TypedDict):
    """A finite number."""

    kind: Literal["number"]


class CountTarget(TypedDict):
    """0, 1, 2, ..."""

    kind: Literal["count"]


class LinearArchitecture(TypedDict):
    """A GLM on the monomials of the inputs up to `degree`, or of those inputs that `features` names."""

    kind: Literal["linear"]
    degree: NotRequired[int]
    features: NotRequired[list[int] | None]


class KernelArchitecture(TypedDict):
    """A GLM on random features of a kernel, drawn from the seed."""

    kind: Literal["kernel"]
    kernel: NotRequired[Literal["rbf", "matern"]]
    features: NotRequired[int]
    lengthscale: NotRequired[float]
    nu: NotRequired[float]
    seed: NotRequired[int]


class MlpArchitecture(TypedDict):
    """Fully connected layers."""

    kind: Literal["mlp"]
    hidden: NotRequired[list[int]]


class ConvolutionalArchitecture(TypedDict):
    """A network for images that has no options."""

    kind: Literal["cifarnet", "lenet5"]


class PluginArchitecture(TypedDict):
    """A network of an installed package. Further entries, which no type can name, are its options."""

    kind: Literal["plugin"]
    name: str


class L2Regularizer(TypedDict):
    """delta/2 |w - m|^2; a list has a delta for each weight, `columns` one for all weights of a column.

    m is `toward`, a number for each weight; of a table, in the units of its columns. Without it m is 0.
    """

    kind: Literal["l2"]
    delta: NotRequired[float | list[float]]
    penalize_bias: NotRequired[bool]
    columns: NotRequired[dict[str, float]]
    toward: NotRequired[list[float]]


class OwnLoss(TypedDict):
    """What a target has unless it is told otherwise: `log` of classes, `squared` of a number, `poisson` of a count."""

    kind: Literal["log", "squared", "poisson"]


class SquaredHingeLoss(TypedDict):
    """max(0, 1 - s f)^2, s = 1 or -1: a support vector machine."""

    kind: Literal["squared_hinge"]


class HuberLoss(TypedDict):
    """Squared up to the `threshold`, and linear beyond."""

    kind: Literal["huber"]
    threshold: NotRequired[float]


Loss = OwnLoss | SquaredHingeLoss | HuberLoss
Input = VectorInput | ImageInput | TableInput
Target = BinaryTarget | ClassesTarget | NumberTarget | CountTarget
Architecture = (
    LinearArchitecture | KernelArchitecture | MlpArchitecture | ConvolutionalArchitecture | PluginArchitecture
)
Regularizer = L2Regularizer
SpecPart = Regularizer | Architecture | Input | Target | Loss
"""What can change."""


class PredictorSpec(TypedDict):
    """All that predicting needs."""

    input: Input
    target: Target
    architecture: Architecture
    class_weight: NotRequired[dict[str, float]]
    """Of classes, by their text: what a row of each is multiplied by in the loss; 1 where it is not named."""
    loss: NotRequired[Loss]
    """The target's own without it."""


class Spec(PredictorSpec):
    """All that training needs."""

    regularizer: Regularizer


def is_network(architecture: Architecture) -> bool:
    """Whether outputs are not linear in the weights; all others are GLMs.

    >>> is_network({"kind": "kernel"}), is_network({"kind": "mlp"})
    (False, True)
    """
    return architecture["kind"] not in ("linear", "kernel")


def shape_of(given: Input) -> tuple[int, ...]:
    """The shape of one raw input.

    >>> shape_of({"kind": "image", "shape": [1, 28, 28]})
    (1, 28, 28)
    """
    if given["kind"] == "vector":
        return (given["dim"],)
    return tuple(given["shape"]) if given["kind"] == "image" else (len(given["columns"]),)


def column_names(given: Input) -> list[str]:
    """How the columns of an input are called: those of a vector by their place, and an image has none.

    >>> column_names({"kind": "vector", "dim": 3})
    ['0', '1', '2']
    """
    if given["kind"] == "vector":
        return [str(i) for i in range(given["dim"])]
    return [column["name"] for column in given["columns"]] if given["kind"] == "table" else []


def dtype_of(given: Input) -> Literal["float32", "uint8"]:
    """The type of its numbers, as examples are stored."""
    return given.get("dtype", "float32") if given["kind"] == "image" else "float32"


def class_weights(target: Target, given: dict[str, float]) -> list[float]:
    """The weight of each class, in the order of the target's values.

    >>> class_weights({"kind": "binary"}, {"1": 5.0})
    [1.0, 5.0]
    """
    return [float(given.get(str(value), 1.0)) for value in values_of(target)]


def values_of(target: Target) -> list[int | str]:
    """What a target that is one of several values can be; none for numbers and counts.

    >>> values_of({"kind": "classes", "values": ["cat", "dog"]}), values_of({"kind": "binary"})
    (['cat', 'dog'], [0, 1])
    """
    if target["kind"] == "classes":
        return target["values"]
    return [0, 1] if target["kind"] == "binary" else []


def loss_of(spec: PredictorSpec) -> Loss:
    """The loss of a model: its own, or that of its target."""
    return spec.get("loss") or default_loss(spec["target"])


def gives_scores(spec: PredictorSpec) -> bool:
    """Whether a model tells classes by a score alone: a squared hinge has no probabilities."""
    return loss_of(spec)["kind"] == "squared_hinge"


def default_loss(target: Target) -> OwnLoss:
    """The loss that a target has unless it is told otherwise.

    >>> default_loss({"kind": "number"})
    {'kind': 'squared'}
    """
    kind = target.get("kind")
    if kind not in ("binary", "classes", "number", "count"):
        raise ValueError(f"unknown target kind {kind!r}; known: binary, classes, number, count")
    return {"kind": "squared" if kind == "number" else "poisson" if kind == "count" else "log"}
