"""The store of version files: atomic writes, in a folder and in an object store."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from core.errors import NotFound, Unavailable
from core.versions.store import PARTIAL, Store


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of an S3 server of this process, which is set as any other would be."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        s3fs.S3FileSystem().mkdir("amend")
        yield "s3://amend"
    server.stop()


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}"
    return str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_stored_file_is_read_by_its_name(store: Store) -> None:
    name, sha256 = store.put("models/1", b"weights")
    other, _ = store.put("models/1", b"weights")
    assert name != other
    assert name.startswith("models/1/")
    assert sha256 == hashlib.sha256(b"weights").hexdigest()
    assert store.get(name) == store.get(other) == b"weights"


def test_a_missing_file_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("models/1/none.safetensors")


def test_deleting_a_folder_deletes_its_files_only(store: Store) -> None:
    gone, stays = store.put("models/1", b"a")[0], store.put("models/10", b"b")[0]
    store.delete("models/1")
    store.delete("models/1")
    store.delete("models/99")
    with pytest.raises(NotFound):
        store.get(gone)
    assert store.get(stays) == b"b"


def test_changes_of_another_process_are_visible(store: Store, url: str) -> None:
    file, _ = store.put("models/1", b"a")
    assert store.names("models/1") == [file]
    elsewhere = Store(url)
    elsewhere.files = type(store.files)(skip_instance_cache=True)  # nothing that it keeps is shared
    new, _ = elsewhere.put("models/1", b"b")
    elsewhere.delete(file)
    assert store.names("models/1") == [new]
    assert (store.exists(file), store.exists(new)) == (False, True)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def break_off(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, step, break_off)
    with pytest.raises(Unavailable, match="cannot be written"):
        Store(str(tmp_path)).put("models/1", b"weights")
    assert files(tmp_path) == []


def test_a_deletion_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    file = store.put("models/1", b"weights").file
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    store.delete(file)
    assert synced == [str(tmp_path / "models" / "1")]


def test_what_a_killed_process_wrote_of_a_file_is_found_and_deleted(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("journal/a.json", b"whole")
    for name in ("a.json", "b.json"):
        (tmp_path / "journal" / f"{name}.{uuid.uuid4().hex}{PARTIAL}").write_bytes(b"ha")
    assert store.names("journal") == ["journal/a.json"]
    assert store.unfinished("journal") == ["journal/a.json", "journal/b.json"]
    store.delete_unfinished("journal/a.json")
    store.delete("journal/b.json")
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["a.json"]
    assert store.unfinished("journal") == store.unfinished("models/1") == []


def test_a_store_that_does_not_respond_raises_unavailable(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(Unavailable):
        Store(str(tmp_path)).get("models")


def test_any_error_of_an_object_store_raises_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfItsOwn(Exception):
        """As botocore's, which are no OSError."""

    def refuse(*_: object, **__: object) -> None:
        raise OfItsOwn

    store = Store(f"memory://{uuid.uuid4().hex}")
    for method in ("pipe_file", "cat_file", "ls", "exists"):
        monkeypatch.setattr(store.files, method, refuse)
    for act in (partial(store.put, data=b""), store.get, store.names, store.exists, store.delete):
        with pytest.raises(Unavailable):
            act("a")
