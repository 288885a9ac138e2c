"""Verifies a bundle: runs the checks in order and collects their results.

Checks that build on a failed one are left out: the failed one already decides.
"""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from amend.errors import PackageMissing
from amend.verification.findings import Verification

if TYPE_CHECKING:
    from os import PathLike

PACKAGES = ("cryptography", "numpy", "rfc3161_client", "safetensors", "scipy")


def verify_bundle(
    bundle: "str | PathLike[str]",
    key: "str | PathLike[str] | None" = None,
    head: "str | PathLike[str] | None" = None,
    authority: "str | PathLike[str] | None" = None,
    refit: bool = False,
) -> Verification:
    """Verify an erasure bundle offline.

    ``key`` is a file with the register's public key, which must not come from the bundle; ``head`` is a file with an
    older signed head or an acknowledgement; ``authority`` is a PEM file with the certificates of the time stamping
    authority. ``refit`` minimises the objective of every certified model on the rows in the bundle. Raises
    :class:`BundleError` if a file cannot be read, and :class:`PackageMissing` without the extra ``amend[verify]``.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PackageMissing(f"Verification requires {', '.join(missing)}. Run: pip install 'amend[verify]'")
    from amend.verification.procedure import Procedure  # needs the packages

    def path(file: "str | PathLike[str] | None") -> Path | None:
        return None if file is None else Path(file)

    return Procedure(Path(bundle), path(key), path(head), path(authority), refit).run()
