"""Types of a spec as JSON and state files store it: plain dictionaries, distinguished by `kind`.

Generated from core/models/spec.py, which describes the fields, by tools/spec_types.py: do not edit.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class NumberColumn(TypedDict):
    name: str
    type: Literal["number"]
    was: NotRequired[str]
    default: NotRequired[float]
    restores: NotRequired[int]


class BooleanColumn(TypedDict):
    name: str
    type: Literal["boolean"]
    was: NotRequired[str]
    default: NotRequired[bool]
    restores: NotRequired[int]


class DateColumn(TypedDict):
    name: str
    type: Literal["date"]
    was: NotRequired[str]
    default: NotRequired[None]
    restores: NotRequired[int]


class CategoryColumn(TypedDict):
    name: str
    type: Literal["category"]
    values: list[int | str]
    other: NotRequired[bool]
    was: NotRequired[str]
    default: NotRequired[int | str]
    merge: NotRequired[dict[str, int | str]]
    restores: NotRequired[int]


class VectorInput(TypedDict):
    kind: Literal["vector"]
    dim: int


class ImageInput(TypedDict):
    kind: Literal["image"]
    shape: list[int]
    dtype: NotRequired[Literal["float32", "uint8"]]


class TableInput(TypedDict):
    kind: Literal["table"]
    columns: list[Column]


class BinaryTarget(TypedDict):
    kind: Literal["binary"]


class ClassesTarget(TypedDict):
    kind: Literal["classes"]
    values: list[int | str]
    merge: NotRequired[dict[str, int | str]]


class NumberTarget(TypedDict):
    kind: Literal["number"]


class CountTarget(TypedDict):
    kind: Literal["count"]


class LinearArchitecture(TypedDict):
    kind: Literal["linear"]
    degree: NotRequired[int]
    features: NotRequired[list[int] | None]


class KernelArchitecture(TypedDict):
    kind: Literal["kernel"]
    kernel: NotRequired[Literal["rbf", "matern"]]
    features: NotRequired[int]
    lengthscale: NotRequired[float]
    nu: NotRequired[float]
    seed: NotRequired[int]


class MlpArchitecture(TypedDict):
    kind: Literal["mlp"]
    hidden: NotRequired[list[int]]


class CifarnetArchitecture(TypedDict):
    kind: Literal["cifarnet"]


class Lenet5Architecture(TypedDict):
    kind: Literal["lenet5"]


class PluginArchitecture(TypedDict):
    kind: Literal["plugin"]
    name: str


class OwnLoss(TypedDict):
    kind: Literal["log", "squared", "poisson"]


class SquaredHingeLoss(TypedDict):
    kind: Literal["squared_hinge"]


class HuberLoss(TypedDict):
    kind: Literal["huber"]
    threshold: NotRequired[float]


class L2Regularizer(TypedDict):
    kind: Literal["l2"]
    delta: NotRequired[float | list[float]]
    penalize_bias: NotRequired[bool]
    columns: NotRequired[dict[str, float]]
    toward: NotRequired[list[float]]


Column = NumberColumn | BooleanColumn | DateColumn | CategoryColumn
Input = VectorInput | ImageInput | TableInput
Target = BinaryTarget | ClassesTarget | NumberTarget | CountTarget
Architecture = (
    LinearArchitecture
    | KernelArchitecture
    | MlpArchitecture
    | CifarnetArchitecture
    | Lenet5Architecture
    | PluginArchitecture
)
Loss = OwnLoss | SquaredHingeLoss | HuberLoss
Regularizer = L2Regularizer


class PredictorSpec(TypedDict):
    """What prediction needs."""

    input: Input
    target: Target
    architecture: Architecture
    class_weight: NotRequired[dict[str, float]]
    loss: NotRequired[Loss]


class Spec(PredictorSpec):
    """What training needs."""

    regularizer: Regularizer
