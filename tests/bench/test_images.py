"""CIFAR-10's public files, made small: they are read as they are, and what is not of their format is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.images import PIXELS, TEST, TRAINING, cifar10, coloured_digits, convert
from bench.paper import CIFAR, run
from bench.problems import images


def write(folder: Path, rows: int = 4) -> np.ndarray:
    """All files; the records of the first."""
    random = np.random.default_rng(0)
    made = random.integers(0, 256, (len(TRAINING) + 1, rows, 1 + PIXELS)).astype(np.uint8)
    made[:, :, 0] %= 10
    for name, records in zip((*TRAINING, TEST), made, strict=True):
        (folder / name).write_bytes(records.tobytes())
    return made[0]


def test_binary_files_are_read(tmp_path: Path) -> None:
    records = write(tmp_path)
    train, test = cifar10(tmp_path)
    assert (len(train), len(test), train.x.shape[1:]) == (20, 4, (3, 32, 32))
    assert train.y[:4].tolist() == records[:, 0].tolist()
    assert train.x[1, 2, 5, 7] == records[1, 1 + 2 * 1024 + 5 * 32 + 7]  # blue, sixth row, eighth column
    problem = images(tmp_path, "model", 10)
    assert (len(problem.base), problem.new_spec["architecture"]) == (10, {"kind": "lenet5"})


def test_the_npm_package_becomes_the_binary_version(tmp_path: Path) -> None:
    write(tmp_path)
    for name in (*TRAINING, TEST):
        records = np.fromfile(tmp_path / name, np.uint8).reshape(4, 1 + PIXELS)
        colours = records[:, 1:].reshape(4, 3, 1024).transpose(0, 2, 1)  # one image in each row of pixels
        Image.fromarray(np.ascontiguousarray(colours)).save(tmp_path / name.replace(".bin", ".png"))
    classes = [np.fromfile(tmp_path / name, np.uint8)[:: 1 + PIXELS].tolist() for name in (*TRAINING, TEST)]
    (tmp_path / "train_lables.json").write_text(json.dumps(sum(classes[:-1], [])))
    (tmp_path / "test_lables.json").write_text(json.dumps(classes[-1]))
    assert convert(tmp_path, tmp_path / "made") == 24
    for name in (*TRAINING, TEST):
        assert (tmp_path / "made" / name).read_bytes() == (tmp_path / name).read_bytes()
    (tmp_path / "test_lables.json").write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="has 24 images, but not a class"):
        convert(tmp_path, tmp_path / "other")
    (tmp_path / "test_lables.json").unlink()
    with pytest.raises(ValueError, match=r"has no test_lables\.json"):
        convert(tmp_path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pickled_files_are_refused_unread(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    (tmp_path / "data_batch_1").write_bytes(f"cos\nmkdir\n(S'{opened}'\ntR.".encode())  # makes a folder, if loaded
    with pytest.raises(ValueError, match="pickled"):
        cifar10(tmp_path)
    assert not opened.exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no data_batch_1\.bin"):
        cifar10(tmp_path)
    write(tmp_path)
    (tmp_path / TEST).write_bytes(b"\x00" * 5000)
    with pytest.raises(ValueError, match="5000 bytes"):
        cifar10(tmp_path)
    (tmp_path / TEST).write_bytes(bytes([11]) * (1 + PIXELS))
    with pytest.raises(ValueError, match="class 11 in record 0"):
        cifar10(tmp_path)


def test_digits_have_the_shape_of_cifar() -> None:
    train, test = coloured_digits()
    assert train.x.shape == (1397, 3, 32, 32)
    assert (train.x.dtype, len(test)) == (np.uint8, 400)


@pytest.mark.parametrize(("only", "sentence"), [("nonsense", "No part has 'nonsense'"), ("cifar", "pickled")])
def test_a_run_that_cannot_be_is_refused_before_it_begins(tmp_path: Path, only: str, sentence: str) -> None:
    (tmp_path / CIFAR).mkdir()
    (tmp_path / CIFAR / "data_batch_1").touch()
    with pytest.raises(SystemExit, match=sentence):
        run(tmp_path, None, tmp_path, only, 1)
