"""The demo's images: scikit-learn's 1 797 handwritten digits of 8 x 8 pixels, labelled odd or even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn
from sklearn.datasets import load_digits

Columns = dict[str, NDArray[Any]]

PER_WRITER = 42
"""Images per writer. The assignment is invented: 43 people wrote the digits, but the data set does not say who."""
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
LOW = np.add.outer(np.arange(8), np.arange(8)) < 7
"""The 28 lowest frequencies of an image. The transform is fixed, so it does not depend on any erased example."""


class Digits:
    """Images of given digits, as columns of examples. Every fourth image is in the holdout."""

    def __init__(self) -> None:
        data = load_digits()
        self.images: NDArray[Any] = data.images / 16
        self.digit: NDArray[Any] = data.target

    def pixels(self, *digits: int) -> Columns:
        """The pixels of each image."""
        return self.columns(self.images.reshape(-1, 64), "image", digits)

    def frequencies(self, *digits: int) -> Columns:
        """The low frequencies of each image, and of the image moved by one pixel in four directions."""
        moved = (np.roll(self.images, shift, axis=(1, 2)) for shift in SHIFTS)
        parts = [
            self.columns(dctn(images, axes=(1, 2), norm="ortho")[:, LOW], f"shift-{i}", digits)
            for i, images in enumerate(moved)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def columns(self, x: NDArray[Any], prefix: str, digits: tuple[int, ...]) -> Columns:
        wanted = np.flatnonzero(np.isin(self.digit, digits))
        return {
            "id": np.char.add(f"{prefix}-", wanted.astype(str)),
            "subject": np.char.add("writer-", (wanted // PER_WRITER).astype(str)),
            "x": x[wanted].astype(np.float32),
            "y": self.digit[wanted] % 2,
            "split": np.where(wanted % 4 == 0, "holdout", "train"),
        }
