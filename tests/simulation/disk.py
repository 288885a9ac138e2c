"""A disk in memory, under the real functions of `core.versions.store`, which write a file under a temporary name, sync
it, rename it and sync its folder.

A process that is killed leaves what it had written so far. A crash of the machine undoes changes that were not synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from random import Random
from typing import Any

from core.versions.store import PARTIAL, Store
from tests.simulation.baton import Baton


class Files:
    """The files, by path. Stands in for fsspec's file system of local files."""

    def __init__(self, baton: Baton, random: Random, request: Callable[[str, str], None]) -> None:
        self.baton, self.random, self.request = baton, random, request
        self.live: dict[str, bytes] = {}
        self.meant: dict[str, bytes] = {}
        """The contents that temporary files were to have: they may be written in part."""
        self.unsynced: list[dict[str, bytes | None]] = []
        """Changes, in order: the paths that each of them changed, with their contents before."""

    def change(self, contents: dict[str, bytes | None]) -> None:
        """Change files; the changes are kept or undone together."""
        self.unsynced.append({path: self.live.get(path) for path in contents})
        self.put(contents)

    def put(self, contents: dict[str, bytes | None]) -> None:
        for path, data in contents.items():
            if data is None:
                self.live.pop(path, None)
            else:
                self.live[path] = data

    def sync(self, path: str) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        self.baton.point("file sync", yields=False)
        if path in self.live:
            self.unsynced = [change for change in self.unsynced if path not in change]
        else:
            inside = f"{path}/"
            self.unsynced = [change for change in self.unsynced if not all(name.startswith(inside) for name in change)]

    def crash(self) -> None:
        """Lose the last changes that were not synced: any prefix of them is kept."""
        kept = self.random.randint(0, len(self.unsynced))
        for change in reversed(self.unsynced[kept:]):
            self.put(change)
        self.unsynced = []

    # What the product calls

    def write(self, path: str, data: bytes) -> None:
        """Write a file, in two steps."""
        self.request("store", "file write")
        self.meant[path] = data
        self.change({path: data[: self.random.randint(0, len(data))]})
        self.baton.point("file half written")
        if path in self.live:  # otherwise it was deleted, and nobody sees what is written
            self.change({path: data})

    def rename(self, path: str, target: str) -> None:
        self.baton.point("file written")
        if path not in self.live:
            raise FileNotFoundError(path)
        self.change({path: None, target: self.live[path]})
        self.baton.point("file renamed")

    def remove(self, path: str) -> None:
        self.baton.point("file delete")
        if path in self.live:
            self.change({path: None})

    def makedirs(self, path: str, exist_ok: bool) -> None: ...

    def ls(self, folder: str, detail: bool) -> list[str]:
        self.request("store", "file list")
        found = self.inside(folder)
        if not found:
            raise FileNotFoundError(folder)
        return found

    def inside(self, folder: str) -> list[str]:
        return [path for path in self.live if path.rpartition("/")[0] == folder]

    def cat_file(self, path: str) -> bytes:
        self.request("store", "file read")
        if path not in self.live:
            raise FileNotFoundError(path)
        return self.live[path]

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.live)

    def rm(self, path: str, recursive: bool) -> None:
        self.request("store", "file delete")
        for name in [name for name in self.live if name == path or name.startswith(f"{path}/")]:
            self.change({name: None})


class DiskPath(PurePosixPath):
    """Stands in for `pathlib.Path` in `core.versions.store`."""

    files: Files

    @contextmanager
    def open(self, _mode: str) -> Iterator[Any]:
        yield OpenFile(self.files, str(self))

    def replace(self, target: DiskPath) -> None:
        self.files.rename(str(self), str(target))

    def unlink(self, missing_ok: bool) -> None:
        self.files.remove(str(self))

    def glob(self, pattern: str) -> list[DiskPath]:
        found = (type(self)(path) for path in self.files.inside(str(self)))
        return [path for path in found if fnmatchcase(path.name, pattern)]


class OpenFile:
    def __init__(self, files: Files, path: str) -> None:
        self.files, self.path = files, path

    def write(self, data: bytes) -> None:
        self.files.write(self.path, data)

    def flush(self) -> None: ...

    def fileno(self) -> str:
        return self.path


class DiskSystem:
    """Stands in for `os` in `core.versions.store`. A descriptor is a path."""

    O_RDONLY = os.O_RDONLY

    def __init__(self, files: Files) -> None:
        self.fsync = files.sync

    def open(self, path: DiskPath, _flags: int) -> str:
        return str(path)

    def close(self, _descriptor: str) -> None: ...


class MemoryStore(Store):
    """The real store on a disk in memory."""

    def __init__(self, files: Files) -> None:
        self.files, self.root, self.local = files, "/store", True

    def contents(self, folder: str = "models/") -> dict[str, bytes]:
        """All files of a folder, by their names in the store."""
        return {name: data for name, data in self.all(folder).items() if not name.endswith(PARTIAL)}

    def leftovers(self, folder: str = "models/") -> dict[str, bytes]:
        """The temporary files in a folder that are not empty, with the contents that they were to have."""
        found = {name: data for name, data in self.all(folder).items() if name.endswith(PARTIAL)}
        return {name: self.files.meant[f"{self.root}/{name}"] for name, data in found.items() if data}

    def all(self, folder: str) -> dict[str, bytes]:
        prefix = f"{self.root}/"
        found = {path.removeprefix(prefix): data for path, data in self.files.live.items()}
        return {name: data for name, data in found.items() if name.startswith(folder)}
