"""The store of version files: whole or not at all, in a folder and in any other file system of fsspec."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import pytest

from core.errors import NotFound, Unavailable
from core.versions.store import Store


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_was_put_can_be_got_under_its_name(store: Store) -> None:
    name, sha256 = store.put("models/1", b"weights")
    other, _ = store.put("models/1", b"weights")
    assert name != other
    assert name.startswith("models/1/")
    assert sha256 == hashlib.sha256(b"weights").hexdigest()
    assert store.get(name) == store.get(other) == b"weights"


def test_a_missing_file_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("models/1/none.safetensors")


def test_a_folder_goes_with_its_files_and_no_other(store: Store) -> None:
    gone, stays = store.put("models/1", b"a")[0], store.put("models/10", b"b")[0]
    store.delete("models/1")
    store.delete("models/1")
    store.delete("models/99")
    with pytest.raises(NotFound):
        store.get(gone)
    assert store.get(stays) == b"b"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def break_off(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, step, break_off)
    with pytest.raises(Unavailable, match="takes nothing"):
        Store(str(tmp_path)).put("models/1", b"weights")
    assert files(tmp_path) == []


def test_a_store_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(Unavailable):
        Store(str(tmp_path)).get("models")
