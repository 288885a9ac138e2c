"""`python -m tools.release_data`: write the data of this release, which later releases must be able to open.

It runs Amend with each database, makes requests as users would, and stores the data folder, the content of the database
and what the service returned under `tests/migrations/releases/VERSION`. `tests/migrations/test_releases.py` opens the
data of every release with the present code. The data of a release may be written again until the release is tagged;
then it is frozen, and so are its migrations.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from alembic.script import ScriptDirectory

from migrations import runner
from tests.servers import conninfo, postgres, postgres_binaries
from tests.worker.deployment import Deployment, running_deployment
from tests.worker.erasure_helpers import erase

ROOT = Path(__file__).parent.parent
RELEASES = ROOT / "tests" / "migrations" / "releases"
DUMP = "amend.sql"
"""The PostgreSQL database in an archive; the SQLite database is in the data folder."""
TRANSIENT = ("broker", "scheduler.alive", "worker.alive")
"""Files of the data folder that are not kept."""


def fingerprint(revision: str) -> str:
    """Hash of all migrations up to a revision: it changes if one of them does."""
    scripts = ScriptDirectory.from_config(runner.make_config()).iterate_revisions(revision, "base")
    texts = sorted(Path(script.path).read_text() for script in scripts)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def is_tagged(release: str) -> bool:
    """Whether a release has a tag in this repository."""
    found = subprocess.run(["git", "-C", str(ROOT), "tag", "--list", f"v{release}"], capture_output=True, text=True)
    return found.stdout.strip() != ""


def customers(count: int, seed: int, flip: bool = False, **columns: float) -> list[dict[str, Any]]:
    """Examples of the model `loans`."""
    rng = np.random.default_rng(seed)
    age, income, plan = rng.integers(18, 80, count), rng.normal(40, 12, count), rng.integers(0, 2, count)
    chance = 1 / (1 + np.exp(-(income - 40) / 4 - plan))
    y = (rng.random(count) < chance) != flip
    return [
        {
            "id": f"{seed}-{i}",
            "subject": f"customer {seed}-{i % (count // 2)}",
            "x": {"age": int(age[i]), "income": round(float(income[i]), 2), "plan": "ab"[plan[i]], **columns},
            "y": int(y[i]),
            "source": f"load {seed}",
            "time": f"2026-01-{1 + i % 28:02}T12:00:00Z",
        }
        for i in range(count)
    ]


QUIET = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}, "holdout": 0.3}
LOANS = {
    "name": "loans",
    "input": {
        "kind": "table",
        "columns": [
            {"name": "age", "type": "number"},
            {"name": "income", "type": "number"},
            {"name": "plan", "type": "category", "values": ["a", "b"]},
        ],
    },
    "target": {"kind": "binary"},
    "policy": QUIET,
}
TENURE = {"name": "tenure", "type": "number"}
FLOWERS = {
    "name": "flowers",
    "input": {"kind": "vector", "dim": 2},
    "target": {"kind": "classes", "values": ["rose", "tulip", "lily"]},
    "architecture": {"kind": "mlp", "hidden": [4]},
    "training": {"max_epochs": 5},
    "policy": QUIET,
}


def flowers(count: int, seed: int) -> list[dict[str, Any]]:
    """Examples of the model `flowers`, a network."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 2)) + 3 * np.stack([kinds == 1, kinds == 2], 1)
    names = FLOWERS["target"]["values"]  # type: ignore[index]
    return [{"id": f"{seed}-{i}", "x": row, "y": names[kinds[i]]} for i, row in enumerate(x.round(3).tolist())]


def make_history(deployment: Deployment) -> None:
    """Every kind of request that stores something."""
    loans = "/v1/models/loans"

    def adapted(name: str) -> Any:
        job = deployment.adapted(name)
        assert job["state"] == "succeeded", job
        return job

    deployment.post("/v1/models", LOANS)
    deployment.post(f"{loans}/examples", {"examples": customers(400, 1)})
    adapted("loans")
    inputs = [row["x"] for row in customers(6, 2)]
    ids = [f"pending {i}" for i in range(6)]
    deployment.post(f"{loans}/predictions", {"inputs": inputs, "ids": ids, "record": True})
    deployment.post(f"{loans}/labels", {"labels": [{"id": id_, "y": 1} for id_ in ids[:2]]})
    deployment.post(f"{loans}/examples", {"examples": customers(80, 3)})
    deployment.ended(deployment.post(f"{loans}/removals", {"ids": ["3-0", "3-1"]})["job"])
    corrected = {**customers(80, 3)[5], "y": 1, "weight": 2.0}
    deployment.request("PUT", f"{loans}/examples/{corrected.pop('id')}", json=corrected)
    adapted("loans")
    erase(deployment, "customer 3-7")
    deployment.ended(deployment.post(f"{loans}/changes", {"add_columns": [TENURE]})["job"])
    deployment.post(f"{loans}/examples", {"examples": customers(600, 4, flip=True, tenure=2)})
    rejected = adapted("loans")
    assert "rejected" in rejected["message"], rejected
    deployment.ended(deployment.post(f"{loans}/retrains")["id"])
    deployment.post("/v1/erasures", {"subject": "customer 1-2", "hold": True})
    deployment.post("/v1/keys", {"name": "reader", "scopes": ["read"], "models": ["loans"]})
    deployment.post("/v1/models", FLOWERS)
    deployment.post("/v1/models/flowers/examples", {"examples": flowers(90, 1)})
    adapted("flowers")
    deployment.post("/v1/models/flowers/hold")
    deployment.wait_for_ticks()  # removed examples are deleted
    for name in ("loans", "flowers"):
        deployment.settled(name)


def describe(deployment: Deployment) -> dict[str, Any]:
    """What later releases must return for the same data."""
    inputs = {"loans": [row["x"] for row in customers(5, 5, tenure=3)], "flowers": [[0, 0], [3, 0], [0, 3]]}
    found = {}
    for name, rows in inputs.items():
        model = deployment.get(f"/v1/models/{name}")
        outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": rows})["outputs"]
        states = {v["version"]: v["state"] for v in deployment.get(f"/v1/models/{name}/versions")["items"]}
        found[name] = {
            "inputs": rows,
            "outputs": [output.get("probabilities") or output["mean"] for output in outputs],
            "versions": states,
            **{key: model[key] for key in ("head", "champion", "counts")},
        }
    return {"models": found, "receipts": deployment.get("/v1/receipts/verify")["receipts"]}


def archive(folder: Path, target: Path) -> None:
    """Store a data folder, without what a start creates anew."""

    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        first = Path(info.name).parts[:1]
        return None if first and first[0].startswith(TRANSIENT) else info

    with tarfile.open(target, "w:xz", preset=9) as file:
        file.add(folder, "", filter=keep)


def write(target: Path) -> None:
    """Write the data of this release to a folder."""
    expected: dict[str, Any] = {}
    revision = runner.newest()
    assert revision is not None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "sqlite"
        folder.mkdir()
        with running_deployment(folder) as deployment:
            make_history(deployment)
            expected["sqlite"] = describe(deployment)
        archive(folder / "home", target / "sqlite.tar.xz")
    with tempfile.TemporaryDirectory() as temporary, postgres() as server:
        folder = Path(temporary) / "postgresql"
        folder.mkdir()
        url = server.create_database("release")
        with running_deployment(folder, url) as deployment:
            make_history(deployment)
            expected["postgresql"] = describe(deployment)
        # as INSERT statements, which any client can execute
        program = postgres_binaries(Path(temporary)) / "pg_dump"
        command = [str(program), "--inserts", "--no-owner", "--no-privileges", "--dbname", conninfo(url)]
        dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (folder / "home" / DUMP).write_text(dump)
        archive(folder / "home", target / "postgresql.tar.xz")
    about = {"revision": revision, "fingerprint": fingerprint(revision), "expected": expected}
    (target / "release.json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    release = version("amend")
    if is_tagged(release):
        sys.exit(f"Release {release} is tagged, so its data is frozen. Increase the version in pyproject.toml first.")
    target = RELEASES / release
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        for file in Path(temporary).iterdir():
            shutil.copy(file, target / file.name)
    print(f"Wrote {target.relative_to(ROOT)}. Commit it.")


if __name__ == "__main__":
    main()
