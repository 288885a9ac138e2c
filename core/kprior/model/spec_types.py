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
    transform: NotRequired[Transform]


class ImageInput(TypedDict):
    kind: Literal["image"]
    shape: list[int]
    dtype: NotRequired[Literal["float32", "uint8"]]


class TableInput(TypedDict):
    kind: Literal["table"]
    columns: list[Column]
    transform: NotRequired[Transform]


class TextInput(TypedDict):
    kind: Literal["text"]


class BinaryTarget(TypedDict):
    kind: Literal["binary"]


class ClassesTarget(TypedDict):
    kind: Literal["classes"]
    values: list[int | str]
    merge: NotRequired[dict[str, int | str]]


class LabelsTarget(TypedDict):
    kind: Literal["labels"]
    values: list[int | str]


class NumberTarget(TypedDict):
    kind: Literal["number"]
    transform: NotRequired[Literal["log", "log1p"]]


class CountTarget(TypedDict):
    kind: Literal["count"]


class HashingEncoder(TypedDict):
    kind: Literal["hashing"]
    features: NotRequired[int]


class OnnxEncoder(TypedDict):
    kind: Literal["onnx"]
    digest: str
    features: NotRequired[int]
    trained_on: NotRequired[Literal["other", "examples"]]


class PluginEncoder(TypedDict):
    kind: Literal["plugin"]
    name: str
    digest: NotRequired[str]
    features: NotRequired[int]


class LinearArchitecture(TypedDict):
    kind: Literal["linear"]
    degree: NotRequired[int]
    encoder: NotRequired[FrozenEncoder]
    features: NotRequired[list[int] | None]


class KernelArchitecture(TypedDict):
    kind: Literal["kernel"]
    kernel: NotRequired[Literal["rbf", "matern"]]
    features: NotRequired[int]
    lengthscale: NotRequired[float]
    nu: NotRequired[float]
    seed: NotRequired[int]


class TreesArchitecture(TypedDict):
    kind: Literal["trees"]
    trees: NotRequired[int]
    leaves: NotRequired[int]
    learning_rate: NotRequired[float]
    min_examples: NotRequired[int]


class MlpArchitecture(TypedDict):
    kind: Literal["mlp"]
    hidden: NotRequired[list[int]]


class CifarnetArchitecture(TypedDict):
    kind: Literal["cifarnet"]


class Lenet5Architecture(TypedDict):
    kind: Literal["lenet5"]


class SequentialArchitecture(TypedDict):
    kind: Literal["sequential"]
    layers: list[Layer]


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


class FillStep(TypedDict):
    kind: Literal["fill"]
    values: list[float | None]
    flags: NotRequired[list[int]]


class ScaleStep(TypedDict):
    kind: Literal["scale"]
    mean: list[float]
    scale: list[float]


class ClipStep(TypedDict):
    kind: Literal["clip"]
    low: float
    high: float


class OneHotStep(TypedDict):
    kind: Literal["one_hot"]
    inputs: list[OneHot]


class LookupStep(TypedDict):
    kind: Literal["lookup"]
    inputs: list[Lookup]


class FunctionStep(TypedDict):
    kind: Literal["function"]
    name: Literal["log1p", "log", "log2", "log10", "sqrt", "square", "exp", "expm1", "abs"]


class ProductsStep(TypedDict):
    kind: Literal["products"]
    of: list[list[int]]


class PiecewiseStep(TypedDict):
    kind: Literal["piecewise"]
    inputs: list[Piecewise]


class ProjectStep(TypedDict):
    kind: Literal["project"]
    matrix: list[list[float]]
    offset: list[float]


class NormalizeStep(TypedDict):
    kind: Literal["normalize"]
    norm: NotRequired[Literal["l1", "l2", "max"]]


class PartsStep(TypedDict):
    kind: Literal["parts"]
    parts: list[Part]


class LinearLayer(TypedDict):
    kind: Literal["linear"]
    outputs: int
    bias: NotRequired[bool]


class Conv2dLayer(TypedDict):
    kind: Literal["conv2d"]
    channels: int
    kernel: list[int]
    stride: NotRequired[list[int]]
    padding: NotRequired[list[int]]
    dilation: NotRequired[list[int]]
    groups: NotRequired[int]
    bias: NotRequired[bool]


class PoolLayer(TypedDict):
    kind: Literal["max_pool2d", "avg_pool2d"]
    kernel: list[int]
    stride: list[int]
    padding: NotRequired[list[int]]


class AdaptivePoolLayer(TypedDict):
    kind: Literal["adaptive_avg_pool2d"]
    size: list[int]


class BatchNormLayer(TypedDict):
    kind: Literal["batch_norm"]
    eps: NotRequired[float]


class LayerNormLayer(TypedDict):
    kind: Literal["layer_norm"]
    dimensions: NotRequired[int]
    eps: NotRequired[float]


class DropoutLayer(TypedDict):
    kind: Literal["dropout"]
    p: NotRequired[float]


class ActivationLayer(TypedDict):
    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "flatten"]


class L2Regularizer(TypedDict):
    kind: Literal["l2"]
    delta: NotRequired[float | list[float] | Literal["auto"]]
    penalize_bias: NotRequired[bool]
    columns: NotRequired[dict[str, float]]
    toward: NotRequired[list[float]]


class OneHot(TypedDict):
    places: list[int]
    unseen: NotRequired[int]
    missing: NotRequired[int]
    width: int


class Lookup(TypedDict):
    values: list[float]
    unseen: float
    missing: NotRequired[float]


class Piecewise(TypedDict):
    breaks: list[float]
    origins: list[float]
    coefficients: list[list[list[float]]]
    low: NotRequired[float]
    high: NotRequired[float]


class Part(TypedDict):
    inputs: list[int]
    steps: NotRequired[list[Step]]


class Transform(TypedDict):
    steps: list[Step]
    features: list[str]
    trained_on: NotRequired[Literal["examples", "other"]]


Column = NumberColumn | BooleanColumn | DateColumn | CategoryColumn
Input = VectorInput | ImageInput | TableInput | TextInput
Target = BinaryTarget | ClassesTarget | LabelsTarget | NumberTarget | CountTarget
FrozenEncoder = HashingEncoder | OnnxEncoder | PluginEncoder
Architecture = (
    LinearArchitecture
    | KernelArchitecture
    | TreesArchitecture
    | MlpArchitecture
    | CifarnetArchitecture
    | Lenet5Architecture
    | SequentialArchitecture
    | PluginArchitecture
)
Loss = OwnLoss | SquaredHingeLoss | HuberLoss
Step = (
    FillStep
    | ScaleStep
    | ClipStep
    | OneHotStep
    | LookupStep
    | FunctionStep
    | ProductsStep
    | PiecewiseStep
    | ProjectStep
    | NormalizeStep
    | PartsStep
)
Layer = (
    LinearLayer
    | Conv2dLayer
    | PoolLayer
    | AdaptivePoolLayer
    | BatchNormLayer
    | LayerNormLayer
    | DropoutLayer
    | ActivationLayer
)
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
