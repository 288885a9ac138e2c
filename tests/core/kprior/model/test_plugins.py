"""The package that docs/plugins.md shows: installed, found by its entry point, trained and adapted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "plugins.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_package_of_the_page_can_be_installed_and_trained(tmp_path: Path) -> None:
    source, site = tmp_path / "residual-nets", tmp_path / "site"
    source.mkdir()
    module, script = blocks("python")
    (source / "pyproject.toml").write_text(blocks("toml")[0])
    (source / "residual_nets.py").write_text(module)
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *pip, str(source)], check=True, timeout=120)
    paths = os.pathsep.join([str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = re.match(r"accuracy ([\d.]+) after (\d+) gradients", ran.stdout)
    assert found, ran.stdout
    assert float(found[1]) > 0.85
