"""Reads tensors of safetensors files that may be hostile."""

from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from amend.verification.bundle import MAX_TENSOR_BYTES, Bundle
from amend.verification.families import Array
from amend.verification.findings import Refuted


class Tensors:
    """The tensors of one file, by name."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        try:
            self.arrays: dict[str, Any] = load(bundle.read(name, MAX_TENSOR_BYTES))
        except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Refuted(f"{name} is not a readable safetensors file: {error}.") from None
        self.where = name

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def take(self, name: str, dtype: type, dimensions: tuple[int, ...]) -> Any:
        """A tensor of this type, with one of these numbers of dimensions."""
        array = self.arrays.get(name)
        if array is None or array.dtype != dtype or array.ndim not in dimensions:
            expected = " or ".join(map(str, dimensions))
            raise Refuted(f"{self.where}: `{name}` must be a tensor of {np.dtype(dtype)} with {expected} dimensions.")
        return array

    def numbers(self, name: str, *dimensions: int) -> Array:
        """A tensor of finite numbers."""
        array: Array = self.take(name, np.float64, dimensions)
        if not np.isfinite(array).all():
            raise Refuted(f"{self.where}: `{name}` contains a number that is not finite.")
        return array
