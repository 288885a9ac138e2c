"""Encoders turn raw inputs into what an architecture reads. They keep what they learn from data in buffers.

The buffers are part of a version's state and do not change after the first training: a weight must mean the same in an
adapted model and in the retrain that it is compared with.
"""

import math

import torch
from torch import Tensor, nn

from .categories import indicators_of, unseen_code
from .pipeline_features import transform_of
from .spec import CategoryColumn, Column, Input, PredictorSpec, frozen_encoder
from .spec_types import Transform


class Encoder(nn.Module):
    """Raw inputs (n, ...) -> float tensor (n, *shape)."""

    shape: tuple[int, ...]
    raw_shape: tuple[int, ...]
    """Shape of one input before encoding."""
    sources: list[int] | None = None
    """Which column of the raw input each encoded number comes from; None where inputs have no columns."""


class VectorEncoder(Encoder):
    """A vector of numbers, unchanged."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.shape = self.raw_shape = (dim,)
        self.sources = list(range(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x


class FeatureEncoder(VectorEncoder):
    """The features of a frozen encoder, unchanged: the ledger stores them next to the raw inputs."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.sources = None


class ImageEncoder(Encoder):
    """Pixels: bytes become [0, 1], floats stay as they are."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = self.raw_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x / 255 if x.dtype == torch.uint8 else x


class Category:
    """The index of a category column, and the indicators that the column becomes."""

    def __init__(self, index: int, column: CategoryColumn) -> None:
        self.index, self.size = index, len(column["values"])
        self.width = len(indicators_of(column))
        unseen = unseen_code(column)
        self.missing = self.width - 1
        # index of the value with that name, or the one after all values; columns that refuse unseen values need neither
        self.other = self.missing if unseen is None else self.size if unseen < 0 else int(unseen)

    def place(self, code: float) -> int:
        """Index of the indicator of a code."""
        if math.isnan(code):
            return self.missing
        return int(code) if 0 <= code < self.size else self.other

    def places(self, x: Tensor) -> Tensor:
        """Indices of the indicators that are 1: (n, columns) -> (n,)."""
        code = x[:, self.index]
        known = (code >= 0) & (code < self.size)
        place = torch.where(known, code, torch.where(code.isnan(), float(self.missing), float(self.other)))
        return place.long()


class TableEncoder(Encoder):
    """Columns, one float each: booleans are 1 and 0, dates days, category codes count from 0, NaN is missing.

    A number or a date becomes two numbers: its value, roughly standardised (minus the column's mean, divided by its
    standard deviation), and a flag that is 1 where the value is missing (the value is then 0). A boolean is unchanged
    and has the same flag. A category with V values becomes an indicator for each value, one for unseen values if the
    column accepts them, and one for missing values.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, columns: list[Column]) -> None:
        super().__init__()
        if not columns:
            raise ValueError("A table needs at least one column.")
        for column in columns:
            if column.get("type") not in ("number", "boolean", "date", "category"):
                raise ValueError(f"Column {column.get('name')!r}: type must be number, boolean, date or category.")
            if column["type"] == "category" and not column.get("values"):
                raise ValueError(f"Column {column.get('name')!r}: a category needs 'values'.")
        self.numbers = [i for i, c in enumerate(columns) if c["type"] != "category"]
        self.booleans = [k for k, i in enumerate(self.numbers) if columns[i]["type"] == "boolean"]
        self.categories = [Category(i, c) for i, c in enumerate(columns) if c["type"] == "category"]
        self.shape = (2 * len(self.numbers) + sum(c.width for c in self.categories),)
        self.raw_shape = (len(columns),)
        self.sources = [*self.numbers, *self.numbers, *(c.index for c in self.categories for _ in range(c.width))]
        self.register_buffer("mean", torch.zeros(len(self.numbers), dtype=torch.float64))
        self.register_buffer("scale", torch.ones(len(self.numbers), dtype=torch.float64))

    def set_units(self, mean: Tensor, deviation: Tensor) -> None:
        """Set the units of the number and date columns from their means and standard deviations."""
        # a constant column has a deviation that is pure rounding error
        deviation = torch.where(deviation > 1e-14 * mean.abs(), deviation, torch.ones_like(deviation))
        # The unit is rounded to a power of two, and the mean to a quarter of it, so that nobody can reconstruct the
        # value of a removed example from them.
        scale = torch.exp2(torch.log2(deviation).round())
        self.scale.copy_(scale)
        self.mean.copy_((mean / (scale / 4)).round() * (scale / 4))
        self.scale[self.booleans], self.mean[self.booleans] = 1.0, 0.0

    @property
    def is_plain(self) -> bool:
        """Whether all columns are used unscaled."""
        return bool((self.mean == 0).all()) and bool((self.scale == 1).all())

    @property
    def lacks_units(self) -> bool:
        """Whether a number or date column has the unit 1, usually because it was added without values."""
        unmeasured = self.scale == 1
        unmeasured[self.booleans] = False
        return bool(unmeasured.any())

    def encode_weights(self, W: Tensor) -> Tensor:
        """Convert weights of raw columns to equivalent weights of encoded columns: (K, D + 1), the bias last.

        w x = (w s) (x - m) / s + w m. A missing value is 0 in both, so the weight of its flag takes w m back.
        """
        n, made = len(self.numbers), W.clone()
        moved = W[:, :n] * self.mean.to(W)
        made[:, :n] = W[:, :n] * self.scale.to(W)
        made[:, n : 2 * n] -= moved
        made[:, -1] += moved.sum(1)
        return made

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.numbers)
        out = torch.zeros(len(x), *self.shape, dtype=torch.float64, device=x.device)
        number = x[:, self.numbers].double()
        missing = number.isnan()
        out[:, :count] = torch.where(missing, 0.0, (number - self.mean) / self.scale)
        out[:, count : 2 * count] = missing
        rows, start = torch.arange(len(x), device=x.device), 2 * count
        for category in self.categories:
            out[rows, start + category.places(x)] = 1.0
            start += category.width
        return out


class StepsEncoder(Encoder):
    """The features of an imported pipeline, computed from raw columns; undefined features are 0."""

    def __init__(self, transform: Transform, columns: int) -> None:
        super().__init__()
        self.chain = transform_of(transform, columns)
        self.raw_shape, self.shape = (columns,), (self.chain.outputs,)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.chain(x.double())
        return features.nan_to_num(0.0, 0.0, 0.0)


def model_encoder(spec: PredictorSpec) -> Encoder:
    """The encoder of a model: that of its input, or one that passes the features of its frozen encoder on."""
    encoder = frozen_encoder(spec)
    if encoder is None:
        return encoder_of(spec["input"])
    if not isinstance(encoder.get("features"), int):
        raise ValueError("The number of features of the encoder is not known.")
    return FeatureEncoder(encoder["features"])


def encoder_of(spec: Input) -> Encoder:
    """The encoder of a model's input: vector, image or table, or the steps that the input brings."""
    if spec.get("kind") == "text":
        raise ValueError("Text input requires a linear architecture with an encoder.")
    if spec.get("kind") not in ("vector", "image", "table"):
        raise ValueError(f"Unknown input kind {spec.get('kind')!r}. Choose one of: vector, image, table.")
    if spec["kind"] == "vector":
        if not isinstance(spec.get("dim"), int) or spec["dim"] < 1:
            raise ValueError("A vector needs 'dim', a whole number of at least 1.")
        return StepsEncoder(spec["transform"], spec["dim"]) if "transform" in spec else VectorEncoder(spec["dim"])
    if spec["kind"] == "image":
        shape = spec.get("shape")
        if (
            not isinstance(shape, (list, tuple))
            or len(shape) != 3
            or not all(isinstance(v, int) and v > 0 for v in shape)
        ):
            raise ValueError("An image needs 'shape': channels, height, width.")
        return ImageEncoder((shape[0], shape[1], shape[2]))
    if spec["kind"] != "table" or not isinstance(spec.get("columns"), (list, tuple)):
        raise ValueError("A table needs 'columns'.")
    if "transform" in spec:
        return StepsEncoder(spec["transform"], len(spec["columns"]))
    return TableEncoder(list(spec["columns"]))


def size_of(shape: tuple[int, ...]) -> int:
    """Number of values in one encoded example."""
    return math.prod(shape)
