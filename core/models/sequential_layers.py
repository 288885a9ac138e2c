"""The layers of a network that is given as data: the architecture `sequential`.

`core/kprior/model/sequential.py` builds them. The numbers of inputs follow from the layers before.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.models.field_types import Strict

Size = Annotated[int, Field(ge=1, le=100_000)]
Pair = Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=2, max_length=2)]
Padding = Annotated[list[Annotated[int, Field(ge=0, le=1000)]], Field(min_length=2, max_length=2)]
Epsilon = Annotated[float, Field(gt=0, le=1)]


class LinearLayerSchema(Strict):
    """A fully connected layer. The last one must have as many outputs as the target needs."""

    kind: Literal["linear"]
    outputs: Size
    bias: bool = True


class Conv2dLayerSchema(Strict):
    """A convolution of images."""

    kind: Literal["conv2d"]
    channels: Size
    kernel: Pair
    stride: Pair = [1, 1]
    padding: Padding = [0, 0]
    dilation: Pair = [1, 1]
    groups: Size = 1
    bias: bool = True


class PoolLayerSchema(Strict):
    """The maximum or the mean of each window of an image."""

    kind: Literal["max_pool2d", "avg_pool2d"]
    kernel: Pair
    stride: Pair
    padding: Padding = [0, 0]


class AdaptivePoolLayerSchema(Strict):
    """The mean of windows that are as large as needed for an image of this size."""

    kind: Literal["adaptive_avg_pool2d"]
    size: Pair


class BatchNormLayerSchema(Strict):
    """Batch normalisation. Its statistics stay as they are while the model is adapted; a retrain computes them anew."""

    kind: Literal["batch_norm"]
    eps: Epsilon = 1e-5


class LayerNormLayerSchema(Strict):
    """Layer normalisation over the last dimensions."""

    kind: Literal["layer_norm"]
    dimensions: Annotated[int, Field(ge=1, le=3)] = 1
    eps: Epsilon = 1e-5


class DropoutLayerSchema(Strict):
    """Dropout during training."""

    kind: Literal["dropout"]
    p: Annotated[float, Field(ge=0, lt=1)] = 0.5


class ActivationLayerSchema(Strict):
    """A function of each number, or a change of the shape."""

    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "flatten"]


LayerSchema = Annotated[
    LinearLayerSchema
    | Conv2dLayerSchema
    | PoolLayerSchema
    | AdaptivePoolLayerSchema
    | BatchNormLayerSchema
    | LayerNormLayerSchema
    | DropoutLayerSchema
    | ActivationLayerSchema,
    Field(discriminator="kind"),
]


class SequentialArchitectureSchema(Strict):
    """A network of layers, one after the other."""

    kind: Literal["sequential"]
    layers: list[LayerSchema] = Field(min_length=1, max_length=200)
