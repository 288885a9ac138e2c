"""Encoders from installed packages: text in, numbers out.

The entry point group `amend.encoders` names callables without arguments that return an object with

    features    the number of features
    files       paths of the files that determine the features, such as weights and vocabularies
    encode      a function from a list of n texts to an array (n, features)

Code comes from installed packages only, never over REST.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from core.errors import Invalid, Unavailable
from core.inference.frozen_encoders import PLUGINS

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class LoadedPlugin:
    """An encoder of an installed package."""

    features: int
    digest: str
    encode: Callable[[Sequence[str]], Any]


@cache
def load_plugin(name: str) -> LoadedPlugin:
    """Load an encoder; raises Invalid if no installed package provides it, and Unavailable if it cannot be loaded."""
    found = list(entry_points(group=PLUGINS, name=name))
    if not found:
        message = f"no installed package provides the encoder {name!r} (entry point group {PLUGINS})"
        raise Invalid.at(("architecture", "encoder", "name"), "encoder_not_found", message)
    package = found[0].dist
    release = f"{package.name}=={package.version}" if package else ""
    try:
        made = found[0].load()()
        return LoadedPlugin(int(made.features), digest_files(release, made.files), made.encode)
    except Exception as error:  # the code of a package can raise anything
        message = f"The encoder {name!r} of {release or 'an installed package'} cannot be loaded ({error!r}). Check its"
        raise Unavailable("encoder_failed", f"{message} installation and its settings, and restart Amend.") from error


def digest_files(release: str, files: Iterable[str | Path]) -> str:
    """The digest of a package's release and of files, by their names and contents."""
    total = hashlib.sha256(release.encode())
    for path in sorted(map(Path, files), key=lambda path: path.name):
        content = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                content.update(chunk)
        total.update(path.name.encode() + content.digest())
    return f"sha256:{total.hexdigest()}"
