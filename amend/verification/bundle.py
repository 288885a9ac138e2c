"""Reads a bundle: a zip file of JSON documents, safetensors files and time stamps. Nothing is extracted to disk.

A bundle may come from anyone, so names, sizes and compression are checked before any content is read.
"""

import hashlib
import os
import re
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from amend.verification.documents import Document, parse
from amend.verification.findings import BundleError, Refuted

MAX_FILES = 10_000
MAX_DOCUMENT_BYTES = 2**25
MAX_TENSOR_BYTES = 2**33
"""Maximum size of one safetensors file: a million rows with a thousand features each."""
MAX_TOTAL_BYTES = 2**35
CHUNK_BYTES = 2**20
MEMORY_COPIES = 4
"""Upper estimate of the memory that a file takes when it is read, as a multiple of its size."""
NAME = re.compile(r"[\w.@+~ -]+(/[\w.@+~ -]+)*")
ENCRYPTED = 1
"""Bit of a zip member's flags."""


class Bundle:
    """An open bundle. A context manager."""

    def __init__(self, path: Path) -> None:
        try:
            self.archive = ZipFile(path)
        except OSError as error:
            raise BundleError(f"Cannot read {path}: {error.strerror or error}.") from None
        except (BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError) as error:
            raise BundleError(f"{path} is not a complete zip file: {error}.") from None
        try:
            self.members = check_members(self.archive.infolist())
        except BundleError:
            self.archive.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.archive.close()

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def names(self, folder: str = "", suffix: str = "") -> list[str]:
        return sorted(name for name in self.members if name.startswith(folder) and name.endswith(suffix))

    def stream(self, name: str, limit: int) -> "Any":
        """Yield the content of a file in chunks. Raises Refuted if the file is missing, damaged or too large."""
        if name not in self.members:
            raise Refuted(f"The bundle has no file {name}.")
        if self.members[name].file_size > limit:
            raise Refuted(f"{name} is larger than {limit} bytes.")
        left = self.members[name].file_size
        try:
            with self.archive.open(name) as file:
                while chunk := file.read(CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise Refuted(f"{name} is larger than the bundle states.")
                    yield chunk
        except (BadZipFile, OSError, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError) as error:
            raise Refuted(f"{name} is damaged: {error}.") from None

    def read(self, name: str, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
        size = self.members[name].file_size if name in self.members else 0
        if MEMORY_COPIES * size > memory_size():
            raise BundleError(f"{name} has {size / 2**30:.1f} GiB, too much for the memory of this computer.")
        return b"".join(self.stream(name, limit))

    def hash(self, name: str) -> bytes:
        digest = hashlib.sha256()
        for chunk in self.stream(name, MAX_TENSOR_BYTES):
            digest.update(chunk)
        return digest.digest()

    def json(self, name: str) -> Any:
        return parse(self.read(name), name)

    def document(self, name: str) -> Document:
        return Document(self.json(name), name)


def memory_size() -> float:
    """The memory of this computer in bytes; infinite if it is not known."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def check_members(members: list[ZipInfo]) -> dict[str, ZipInfo]:
    """The files of a bundle by name. Raises BundleError for anything that a bundle does not contain."""
    if len(members) > MAX_FILES:
        raise BundleError(f"The bundle has {len(members)} files, more than the maximum of {MAX_FILES}.")
    found: dict[str, ZipInfo] = {}
    for member in members:
        # orig_filename: zipfile cuts a name at a null byte
        name = member.orig_filename
        if not NAME.fullmatch(name) or ".." in name.split("/") or "." in name.split("/"):
            raise BundleError(f"The bundle contains a file with the invalid name {name!r}.")
        if name in found:
            raise BundleError(f"The bundle contains the file {name} twice.")
        if member.flag_bits & ENCRYPTED or member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BundleError(f"{name} is encrypted or compressed in a way that bundles do not use.")
        found[name] = member
    total = sum(member.file_size for member in members)
    if total > MAX_TOTAL_BYTES:
        raise BundleError(f"The bundle expands to {total} bytes, more than the maximum of {MAX_TOTAL_BYTES}.")
    return found


def check_manifest(bundle: Bundle) -> tuple[str, str]:
    """Compare every file with the manifest, and return the id of the erasure."""
    manifest = bundle.document("manifest.json")
    if manifest.integer("v") != 1:
        raise Refuted("manifest.json has a format that this version of `amend verify` does not know. Upgrade `amend`.")
    listed = manifest.inner("files")
    others = set(bundle.members) - {"manifest.json"}
    if missing := sorted(listed.fields.keys() - others):
        raise Refuted(f"The manifest lists {missing[0]}, which is missing.")
    if added := sorted(others - listed.fields.keys()):
        raise Refuted(f"{added[0]} is not in the manifest.")
    for name in sorted(others):
        if bundle.hash(name) != listed.digest(name):
            raise Refuted(f"{name} was changed: its SHA-256 differs from the manifest.")
    return manifest.text("erasure"), f"{len(others)} files"
