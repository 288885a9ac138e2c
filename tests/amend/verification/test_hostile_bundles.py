"""Bundles that nobody would write by accident: an error or a failed check, never an exception of another kind."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZipFile

import numpy as np
import pytest
from safetensors.numpy import load, save

from amend.verification import BundleError, Result, verify_bundle
from amend.verification import bundle as bundles
from tests.amend.verification import models
from tests.amend.verification.builder import Bundle, Model, make_bundle, manifest_of, zip_bytes
from tests.amend.verification.conftest import KEY, Verify, results


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


OUTSIDE = ("../evil.json", "/etc/passwd", "versions/../../x", "a\\..\\b", "C:/x")
ODD = ("versions/./x", "folder/", "a//b", "a\0b", "x\n", "\x1b[2J")


@pytest.mark.parametrize("name", [*OUTSIDE, *ODD])
def test_names_that_leave_the_bundle_are_refused(name: str, tmp_path: Path) -> None:
    with ZipFile(tmp_path / "bundle.zip", "w") as archive:
        for each, data in make_bundle().files.items():
            archive.writestr(each, data)
        info = bundles.ZipInfo("x")
        info.filename = info.orig_filename = name
        archive.writestr(info, b"{}")
    with pytest.raises(BundleError, match="invalid name"):
        verify_bundle(tmp_path / "bundle.zip")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "bundle.zip", "w") as archive:
        archive.writestr("receipt.json", b"{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("receipt.json", b"{}")
    with pytest.raises(BundleError, match="twice"):
        verify_bundle(tmp_path / "bundle.zip")


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = zip_bytes(make_bundle().files)
    for content in (b"", b"PK\x05\x06", whole[:-10], whole[: len(whole) // 2], b"not a zip file" * 100):
        with pytest.raises(BundleError):
            verify_bundle(write(tmp_path / "bundle.zip", content))
    with pytest.raises(BundleError):
        verify_bundle(tmp_path / "nothing.zip")
    with pytest.raises(BundleError):
        verify_bundle(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_zip_files_never_raise_anything_else(seed: int, tmp_path: Path) -> None:
    stream = np.random.default_rng(seed)
    files = make_bundle().files
    content = bytearray(zip_bytes({**files, "manifest.json": manifest_of(files)}))
    for place in stream.integers(0, len(content), 1 + seed % 5):
        content[place] = stream.integers(0, 256)
    try:
        found = verify_bundle(write(tmp_path / "bundle.zip", bytes(content)))
    except BundleError:
        return
    assert not found.passed  # there is no key


def test_large_files_are_refused_before_they_are_read(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = make_bundle()
    bomb.files["entries.json"] = b" " * (bundles.MAX_DOCUMENT_BYTES + 1)
    assert results(verify(bomb))["Entries of the request"] is Result.FAILED
    monkeypatch.setattr(bundles, "MAX_TOTAL_BYTES", 2**20)
    with pytest.raises(BundleError, match="expands to"):
        verify(bomb)
    monkeypatch.setattr(bundles, "MAX_FILES", 3)
    with pytest.raises(BundleError, match="files"):
        verify(make_bundle())


def test_a_file_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(models.sparse())
    largest = max(len(content) for content in bundle.files.values())
    monkeypatch.setattr(bundles, "memory_size", lambda: bundles.MEMORY_COPIES * largest - 1)
    with pytest.raises(BundleError, match="memory of this computer"):
        verify(bundle, refit=True)


def test_a_file_that_is_larger_than_its_header_says_fails(tmp_path: Path) -> None:
    files = make_bundle().files
    files["manifest.json"] = manifest_of(files)
    content = zip_bytes(files)
    size = struct.pack("<I", len(files["entries.json"]))
    assert content.count(size) >= 2
    key = write(tmp_path / "key", KEY.encode())
    assert verify_bundle(write(tmp_path / "bundle.zip", content), key).passed
    smaller = content.replace(size, struct.pack("<I", 10))
    assert not verify_bundle(write(tmp_path / "bundle.zip", smaller), key).passed


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_BZIP2) as archive:
        archive.writestr("receipt.json", b"{}")
    with pytest.raises(BundleError, match="compressed"):
        verify_bundle(write(tmp_path / "bundle.zip", buffer.getvalue()))


NOT_DOCUMENTS = {
    "empty": b"",
    "text": b"hello",
    "binary": b"\xff\xfe\x00",
    "number": b"1",
    "list": b"[]",
    "object": b"{}",
    "null": b"null",
    "nan": b'{"size": NaN}',
    "infinite": b'{"size": 1e999}',
    "long number": b'{"size": ' + b"9" * 5000 + b"}",
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "nested a little": b'{"a":' * 100 + b"1" + b"}" * 100,
    "duplicate": b'{"size": 1, "size": 2}',
    "surrogate": b'{"record": {"v": 1, "kind": "\\ud800"}}',
}
DOCUMENTS = ("manifest.json", "head.json", "receipt.json", "entries.json", "consistency.json", "key.json")


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", [*DOCUMENTS, "versions/churn.json"])
@pytest.mark.parametrize("content", NOT_DOCUMENTS.values(), ids=NOT_DOCUMENTS)
def test_documents_of_other_shapes_fail(name: str, content: bytes, verify: Verify) -> None:
    bundle = make_bundle(models.gaussian())
    bundle.files[name] = content
    if name == "manifest.json":
        assert not verify(bundle, manifest=False).passed
    else:
        assert not verify(bundle, refit=True).passed


def edit_tensors(bundle: Bundle, name: str, **tensors: Any) -> Bundle:
    """Change tensors of a file, and what the bundle says about the file."""
    found = {**load(bundle.files[name]), **tensors}
    bundle.files[name] = save({key: tensor for key, tensor in found.items() if tensor is not None})
    return bundle


ROWS = {
    "nan": {"features": np.full((models.ROWS, 5), np.nan)},
    "infinite": {"targets": np.full(models.ROWS, np.inf)},
    "few targets": {"targets": np.zeros(3)},
    "many columns": {"features": np.zeros((models.ROWS, 9))},
    "one dimension": {"features": np.zeros(models.ROWS)},
    "short": {"features": np.zeros((models.ROWS, 5), np.float32)},
    "negative weights": {"sample_weights": np.full(models.ROWS, -1.0)},
    "one position": {"positions": np.zeros(models.ROWS, np.int64)},
    "short salts": {"salts": np.zeros((1, 8), np.uint8)},
    "many salts": {"salts": np.zeros((2, 32), np.uint8)},
    "no rows": {"positions": np.zeros(0, np.int64)},
    "no features": {"features": None},
    "sparse out of range": {
        "data": np.ones(1),
        "indices": np.full(1, 99, np.int64),
        "indptr": np.append(np.zeros(models.ROWS, np.int64), 1),
    },
    "sparse pointers": {
        "data": np.ones(1),
        "indices": np.zeros(1, np.int64),
        "indptr": np.full(models.ROWS + 1, 2**40, np.int64),
    },
}


@pytest.mark.parametrize("tensors", ROWS.values(), ids=ROWS)
def test_rows_of_other_shapes_fail(tensors: dict[str, Any], verify: Verify) -> None:
    bundle = edit_tensors(make_bundle(models.gaussian()), "rows/churn.safetensors", **tensors)
    assert results(verify(bundle, refit=True))["Rows of model churn, version 7"] is Result.FAILED


WEIGHTS = {
    "nan": {"weights": np.full((1, 5), np.nan)},
    "one dimension": {"weights": np.zeros(5)},
    "other shape": {"delta": np.zeros((1, 6))},
    "negative": {"delta": np.full((1, 5), -1.0)},
    "empty": {"weights": np.zeros((1, 0)), "delta": np.zeros((1, 0))},
}


@pytest.mark.parametrize("tensors", WEIGHTS.values(), ids=WEIGHTS)
def test_signed_weights_of_other_shapes_fail(tensors: dict[str, Any], verify: Verify) -> None:
    """Even if the operator signs them."""
    model = models.gaussian()
    model.weights, model.delta = tensors.get("weights", model.weights), tensors.get("delta", model.delta)
    found = results(verify(make_bundle(model), refit=True))
    assert found["Weights of model churn, version 7"] is Result.PASSED
    assert found["Objective of model churn, version 7"] is Result.FAILED


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 64, struct.pack("<Q", 2) + b"{}", b"x" * 1000])
def test_files_without_tensors_fail(content: bytes, verify: Verify) -> None:
    bundle = make_bundle(models.gaussian())
    bundle.files["rows/churn.safetensors"] = content
    assert results(verify(bundle, refit=True))["Rows of model churn, version 7"] is Result.FAILED


@pytest.mark.parametrize(
    ("family", "options", "result"),
    [
        ("cauchy", {}, Result.FAILED),
        ("huber", {}, Result.FAILED),
        ("huber", {"threshold": -1}, Result.FAILED),
        ("poisson", {}, Result.FAILED),  # negative targets
        ("bernoulli", {}, Result.FAILED),
        ("categorical", {}, Result.FAILED),
    ],
)
def test_objectives_that_do_not_fit_the_rows_fail(
    family: str, options: dict[str, Any], result: Result, verify: Verify
) -> None:
    model = models.gaussian()
    model.family, model.options = family, options
    assert results(verify(make_bundle(model), refit=True))["Distance of model churn, version 7"] is result


@pytest.mark.parametrize("bound", [-1.0, 1e301, None, "small", True])
def test_bounds_that_are_no_distances_do_not_pass(bound: Any, verify: Verify) -> None:
    model = models.gaussian()
    model.bound = bound
    assert not verify(make_bundle(model), refit=True).passed


def test_without_rows_a_refit_establishes_nothing(verify: Verify) -> None:
    bundle = make_bundle(models.gaussian())
    del bundle.files["rows/churn.safetensors"]
    bundle.edit("versions/churn.json", lambda version: version.update(rows_file=None))
    assert verify(bundle).passed
    found = verify(bundle, refit=True)
    assert results(found)["Rows of model churn, version 7"] is Result.NOT_ESTABLISHED
    nothing = verify(make_bundle(), refit=True)
    assert results(nothing)["Refit"] is Result.NOT_ESTABLISHED


def test_unsigned_statements_of_the_bundle_are_named(verify: Verify) -> None:
    model = models.gaussian()
    model.report = lambda: {"model": "churn", "version": 7, "certificate": {"bound": model.bound}}  # type: ignore[method-assign]
    found = verify(make_bundle(model), refit=True)
    assert found.passed
    assert any("the objective and the number and the Merkle root" in sentence for sentence in found.unproven)


@pytest.mark.grid(3)
@pytest.mark.parametrize("fit", models.FITTED)
@pytest.mark.parametrize("field", ["features", "targets", "sample_weights", "weights", "delta"])
@pytest.mark.parametrize("scale", [1e308, 1e150, 1e-300, 0.0])
def test_extreme_numbers_never_raise(fit: Callable[[], Model], field: str, scale: float, verify: Verify) -> None:
    model = fit()
    value = getattr(model, field)
    fixed = field == "targets" and model.family in ("categorical", "bernoulli", "squared_hinge")
    with np.errstate(over="ignore"):
        changed = value.sign() if hasattr(value, "sign") else np.sign(value)
    setattr(model, field, value if fixed else changed * scale)
    distance = results(verify(make_bundle(model), refit=True)).get("Distance of model churn, version 7")
    assert fixed or distance is not Result.PASSED or scale < 1
