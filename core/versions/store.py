"""The store of version files: a folder, or any file system that fsspec knows (S3, ...)."""

from __future__ import annotations

import hashlib
import os
import uuid

import fsspec
from fsspec.implementations.local import LocalFileSystem

from core.errors import NotFound, Unavailable


class Store:
    """Files by name under one root. A file is there whole or not at all."""

    def __init__(self, url: str) -> None:
        self.files, root = fsspec.core.url_to_fs(url)
        self.root = str(root).rstrip("/")
        self.local = isinstance(self.files, LocalFileSystem)

    def put(self, folder: str, data: bytes) -> tuple[str, str]:
        """Store bytes under a new name in a folder; the name and the SHA-256."""
        name = f"{folder}/{uuid.uuid4().hex}.safetensors"
        path = f"{self.root}/{name}"
        self.files.makedirs(f"{self.root}/{folder}", exist_ok=True)
        # object stores show a file when it is complete; folders show it from the first byte
        partial = f"{path}.partial" if self.local else path
        with self.files.open(partial, "wb") as file:
            file.write(data)
            if self.local:
                file.flush()
                os.fsync(file.fileno())
        if self.local:
            os.replace(partial, path)
        return name, hashlib.sha256(data).hexdigest()

    def get(self, name: str) -> bytes:
        try:
            return bytes(self.files.cat_file(f"{self.root}/{name}"))
        except FileNotFoundError as error:
            raise NotFound("version_purged", "The file of this version is not there any more.") from error
        except OSError as error:
            raise Unavailable("store_unavailable", "The store of version files does not answer.") from error

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all its files; nothing happens if it is not there."""
        path = f"{self.root}/{folder}"
        if self.files.exists(path):
            self.files.rm(path, recursive=True)
