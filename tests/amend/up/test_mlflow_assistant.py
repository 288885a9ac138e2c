"""MLflow's assistant stays closed. This depends on a private key of MLflow's pages."""

from __future__ import annotations

import re
from pathlib import Path

import mlflow

from amend.up.mlflow_assistant import AUTO_OPEN_SCRIPT


def test_the_pages_of_the_installed_mlflow_use_the_key_that_we_set() -> None:
    [(name, version)] = re.findall(rb'setItem\("([\w.]+)_v(\d)"', AUTO_OPEN_SCRIPT)
    pages = Path(str(mlflow.__file__)).parent / "server/js/build/static/js"
    used = b'key:"%s",version:%s' % (name, version)
    assert any(used in script.read_bytes() for script in pages.glob("main*.js")), (
        f"MLflow {mlflow.__version__} no longer uses the key {name.decode()}_v{version.decode()}: its assistant "
        "opens over the first page again. Look for `autoOpened` in its main*.js, and put the new key "
        "into amend/up/mlflow_assistant.py."
    )
