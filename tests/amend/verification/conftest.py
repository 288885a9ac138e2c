from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amend.verification import Result, Verification, verify_bundle
from tests.amend.verification.builder import Bundle, Log

KEY = Log().signer.pem
Verify = Callable[..., Verification]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """Verify a bundle with the key of its register; `head` is a JSON value, `key` a PEM or a JSON value."""

    def run(bundle: Bundle, key: Any = KEY, head: Any = None, **options: Any) -> Verification:
        files = {}
        for name, value in (("key", key), ("head", head)):
            if value is not None:
                files[name] = tmp_path / name
                files[name].write_text(value if isinstance(value, str) else json.dumps(value))
        manifest = options.pop("manifest", True)
        return verify_bundle(bundle.write(tmp_path / "bundle.zip", manifest), **files, **options)

    return run


def results(found: Verification) -> dict[str, Result]:
    return {check.what: check.result for check in found.checks}
