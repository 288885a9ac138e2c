"""The data of every release opens with the present code, and work on it continues.

`tools/release_data.py` writes it. docs/how-to/contribute/change-the-schema.md says what to do if a test fails.
"""

from __future__ import annotations

import json
import re
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest

from migrations import runner
from tests.conftest import BACKENDS
from tests.servers import PostgresServer, conninfo
from tests.worker.deployment import Deployment, running_deployment
from tests.worker.erasure_helpers import erase, wait_for_end
from tools import release_data

NAMES = sorted(folder.name for folder in release_data.RELEASES.iterdir())
OUTDATED = (
    "NOT RUN: the data of release {0}, which is not tagged yet, was written with an older schema. "
    "Run `make release-data` and commit tests/migrations/releases/{0}."
)
CHANGED = (
    "A migration that release {0} contains has changed. Databases of that release have run it already: restore it, and "
    "add a new migration instead."
)


def load(release: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((release_data.RELEASES / release / "release.json").read_text())
    return about


def is_current(about: dict[str, Any]) -> bool:
    """Whether the migrations that a release contains are the ones that its data was written with."""
    revision = about["revision"]
    return runner.is_known(revision) and release_data.fingerprint(revision) == about["fingerprint"]


def is_frozen(release: str) -> bool:
    return release != version("amend") or release_data.is_tagged(release)


@pytest.mark.parametrize("release", NAMES)
def test_migrations_of_a_release_never_change(release: str) -> None:
    if not is_current(load(release)):
        assert not is_frozen(release), CHANGED.format(release)
        pytest.skip(OUTDATED.format(release))


def test_this_release_has_data() -> None:
    assert version("amend") in NAMES, "Run `make release-data` and commit the new folder in tests/migrations/releases."


def restore(dump: str, url: str) -> None:
    """Execute a dump, except for commands of psql and settings that another release of PostgreSQL may not have."""
    statements = re.sub(r"^(\\|SET |SELECT pg_catalog\.set_config).*$", "", dump, flags=re.MULTILINE)
    with psycopg.connect(conninfo(url)) as connection:
        connection.execute(statements.encode())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("release", NAMES)
def test_work_on_the_data_of_a_release_continues(
    release: str, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    about = load(release)
    if not is_current(about):
        pytest.skip(OUTDATED.format(release))
    home, url = tmp_path / "home", ""
    with tarfile.open(release_data.RELEASES / release / f"{backend}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    if backend == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database(f"release{tmp_path.name[-40:]}".lower())
        restore((home / release_data.DUMP).read_text(), url)
    with running_deployment(tmp_path, url) as deployment:
        check_unchanged(deployment, about["expected"][backend])
        check_continues(deployment)
        assert runner.current(deployment.database) == runner.newest()


def check_unchanged(deployment: Deployment, expected: dict[str, Any]) -> None:
    """The service returns what the release returned."""
    for name, known in expected["models"].items():
        model = deployment.get(f"/v1/models/{name}")
        assert {key: model[key] for key in ("head", "champion", "counts")} == {
            key: known[key] for key in ("head", "champion", "counts")
        }
        outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": known["inputs"]})["outputs"]
        for output, before in zip(outputs, known["outputs"], strict=True):
            assert (output.get("probabilities") or output["mean"]) == pytest.approx(before, rel=1e-5)
        versions = deployment.get(f"/v1/models/{name}/versions")["items"]
        assert {str(v["version"]): v["state"] for v in versions} == known["versions"]
    assert deployment.get("/v1/receipts/verify")["receipts"] == expected["receipts"]


def check_continues(deployment: Deployment) -> None:
    """Labels arrive, examples are added, a rejected batch is discarded, people are erased, a version is rebuilt."""
    loans = "/v1/models/loans"
    labels = [{"id": f"pending {i}", "y": 1} for i in (2, 3)]
    assert deployment.post(f"{loans}/labels", {"labels": labels})["accepted"] == 2
    deployment.post(f"{loans}/examples", {"examples": release_data.customers(60, 9, tenure=1)})
    deployment.post(f"{loans}/versions/6/discard")
    adapted = deployment.adapted("loans")
    assert (adapted["state"], deployment.champion("loans")["kind"]) == ("succeeded", "adapted"), adapted
    assert deployment.datasets_agree("loans")
    [held] = [erasure for erasure in deployment.get("/v1/erasures")["items"] if erasure["state"] == "held"]
    deployment.post(f"/v1/erasures/{held['id']}/approve")
    assert wait_for_end(deployment, held["id"])["state"] == "completed"
    erase(deployment, "customer 1-5")
    assert deployment.get("/v1/receipts/verify")["valid"]
    rebuilt = deployment.ended(deployment.post(f"{loans}/versions/1/promote")["job"])
    assert rebuilt["state"] == "succeeded", rebuilt
    deployment.post("/v1/models/flowers/examples", {"examples": release_data.flowers(30, 9)})
    deployment.post("/v1/models/flowers/resume")
    assert deployment.adapted("flowers")["state"] == "succeeded"
