"""The store of version files: a folder, or an object store that fsspec supports, such as S3."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from core.errors import AmendError, Invalid, NotFound, Unavailable

PARTIAL = ".partial"
"""The suffix of a file that is being written."""


def folder_of(model_id: int) -> str:
    """The model's folder in the store. By number: a name may be used again after a deletion."""
    return f"models/{model_id}"


class StoredFile(NamedTuple):
    """A file in the store."""

    file: str
    sha256: str


class Store:
    """Files by name under one root. Writes are atomic."""

    def __init__(self, url: str) -> None:
        # a cached listing would not show the changes of other processes
        try:
            self.files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except Exception as error:  # drivers raise different errors when they are not installed
            scheme = url.partition("://")[0]
            message = f"AMEND_ARTIFACTS_URL: no driver for {scheme}:// is installed."
            hint = "Use a folder, or s3://BUCKET/PATH, which requires amend[s3]."
            raise Invalid("settings_invalid", f"{message} {hint}") from error
        self.root = str(root).rstrip("/")
        self.local = isinstance(self.files, LocalFileSystem)

    def put(self, folder: str, data: bytes, before: Callable[[str], None] = lambda name: None) -> StoredFile:
        """Store bytes under a new name in a folder; `before` is called with the name before anything is written."""
        name = f"{folder}/{uuid.uuid4().hex}.safetensors"
        before(name)
        self.write(name, data)
        return StoredFile(name, hashlib.sha256(data).hexdigest())

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a given name."""
        path = f"{self.root}/{name}"
        with translate_store_errors("cannot be written"):
            if self.local:
                self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
                write_whole(Path(path), data)
            else:  # object stores have no folders, and files appear only when they are complete
                self.files.pipe_file(path, data)

    def names(self, folder: str) -> list[str]:
        """The sorted names of the files in a folder; empty if the folder does not exist."""
        return sorted(name for name in self._list(folder) if not name.endswith(PARTIAL))

    def unfinished(self, folder: str) -> list[str]:
        """The sorted names of files that a process began to write: it still does, or was killed meanwhile."""
        partial = [name for name in self._list(folder) if name.endswith(PARTIAL)] if self.local else []
        return sorted({name.removesuffix(PARTIAL).rpartition(".")[0] for name in partial})

    def _list(self, folder: str) -> list[str]:
        with translate_store_errors():
            try:
                paths = self.files.ls(f"{self.root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
        return [f"{folder}/{str(path).rpartition('/')[2]}" for path in paths]

    def get(self, name: str, sha256: str | None = None) -> bytes:
        """A file's bytes; raises Unavailable if they do not have the given hash."""
        with translate_store_errors():
            try:
                data = bytes(self.files.cat_file(f"{self.root}/{name}"))
            except FileNotFoundError as error:
                raise NotFound("version_purged", "The file of this version no longer exists.") from error
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise Unavailable(
                "version_damaged", "The file of this version is damaged: its hash differs. Restore it from a backup."
            )
        return data

    def exists(self, name: str) -> bool:
        with translate_store_errors():
            return bool(self.files.exists(f"{self.root}/{name}"))

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all its files, if it exists; also what a killed process wrote of it."""
        self._remove(f"{self.root}/{name}")
        self.delete_unfinished(name)

    def delete_unfinished(self, name: str) -> None:
        """Delete what killed processes wrote of a file. A process that is still writing it fails."""
        path = Path(f"{self.root}/{name}")
        for partial in path.parent.glob(f"{path.name}.*{PARTIAL}") if self.local else ():
            self._remove(str(partial))

    def _remove(self, path: str) -> None:
        with translate_store_errors("rejected a deletion"):
            if self.files.exists(path):
                self.files.rm(path, recursive=True)
                if self.local:
                    sync_folder(Path(path).parent)


@contextmanager
def translate_store_errors(problem: str = "does not respond") -> Iterator[None]:
    """Translate the errors of file systems, which differ, to Unavailable."""
    try:
        yield
    except AmendError:
        raise
    except Exception as error:
        raise Unavailable("store_unavailable", f"The store of version files {problem}.") from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, even if the process or the machine crashes, or several processes write it at once."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # otherwise weights would remain that no purge finds
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make new and deleted names in a folder durable: after a power cut, a deleted file could be there again."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
