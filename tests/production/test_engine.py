"""The life of a deployment in a real container engine, by the commands of docs/how-to/operate.

Skipped unless DOCKER_HOST names an engine: see tests/production/engine.py. The tests are steps of one history, in the
order of this file.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.production.engine import OVERRIDE, Host, commands, missing, override
from tests.worker.deployment import problem

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: no container engine is reachable: {missing()}"),
    pytest.mark.xdist_group("engine"),
]

SERVICES = {"api": 1, "mlflow": 1, "postgres": 1, "redis": 1, "scheduler": 1, "worker": 1}
MIGRATION = '''"""A release after this one."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{before}"


def upgrade() -> None:
    op.create_table("of_the_next_release", sa.Column("id", sa.Integer(), primary_key=True))
'''


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"), f"amend-{uuid.uuid4().hex[:8]}")
    try:
        yield host
    finally:
        host.remove()


class Known:
    """What earlier steps leave to later ones."""

    model = ""
    erased = ""
    key = ""


def test_first_deployment(host: Host) -> None:
    output = host.follow("deploy.md", "First deployment")
    assert host.running() == SERVICES
    assert host.readiness()["status"] == "ready"
    assert '"status":"ready"' in output
    (Known.key,) = re.findall(r"amend_[0-9a-f]{12}_[\w-]+", output)
    assert host.client(Known.key).get("/v1/models").status_code == 200


def test_a_model_learns_and_forgets(host: Host) -> None:
    Known.model = host.new_model()
    x, y = problem(60)
    for first, subject in ((0, "kept"), (20, "erased-early"), (40, "erased-late")):
        rows = slice(first, first + 20)
        host.add_examples(Known.model, x[rows], y[rows], first=first, split="train", subject=subject)
    assert host.adapted(Known.model)["state"] == "succeeded"
    erase(host, "erased-early")
    assert host.get(f"/v1/models/{Known.model}")["counts"]["train"] == 40
    host.wait_until(lambda: host.readiness()["mlflow"]["ok"])


def erase(host: Host, subject: str) -> dict[str, Any]:
    erasure = host.post("/v1/erasures", {"subject": subject})["id"]
    host.wait_until(lambda: host.get(f"/v1/erasures/{erasure}")["state"] == "completed", 120)
    found: dict[str, Any] = host.get(f"/v1/erasures/{erasure}")
    return found


def test_no_container_runs_as_root_or_writes_outside_its_volumes(host: Host) -> None:
    check_containers(host)


def check_containers(host: Host) -> None:
    """Check that no container runs as root or has written outside its volumes."""
    for container in host.containers(running=False):
        name = container["Name"]
        assert container["HostConfig"]["ReadonlyRootfs"], name
        assert container["HostConfig"]["CapDrop"] == ["ALL"], name
        # an engine lists the places where it mounts volumes, tmpfs and its own init; nothing may be below them
        changed = {line.split(" ", 1)[1] for line in host.run(f"docker diff {container['Id']}").splitlines()}
        mounted = {"/usr/sbin/docker-init", "/sbin/docker-init", *(container["HostConfig"].get("Tmpfs") or ())}
        mounted |= {mount["Destination"] for mount in container["Mounts"]}
        above = {str(parent) for place in mounted for parent in (Path(place), *Path(place).parents)}
        assert changed <= above, name
        if container["State"]["Running"]:
            owners = host.run(f"docker top {container['Id']} -eo pid,uid,args").splitlines()[1:]
            assert owners, name
            assert not [line for line in owners if line.split()[1] == "0"], name


def test_the_number_of_workers_survives_later_commands(host: Host) -> None:
    host.variables["AMEND_WORKERS"] = "2"
    host.follow("scale.md", "Workers")
    assert host.running() == {**SERVICES, "worker": 2}
    host.run("docker compose up -d --wait")
    assert host.running() == {**SERVICES, "worker": 2}


def test_workers_stay_healthy_without_redis_and_take_jobs_when_it_is_back(host: Host) -> None:
    host.run("docker compose stop redis")
    host.wait_until(lambda: not host.readiness()["broker"]["ok"])
    stopped = time.time()
    touched = "docker compose exec -T worker stat -c %Y /tmp/amend/worker.alive"
    # the last connection is then too long ago to count as a sign of life
    host.wait_until(lambda: int(host.run(touched)) > stopped + host.settings.worker_timeout + 5, 120)
    assert host.health("worker") == {"healthy"}
    assert host.readiness()["worker"]["ok"]
    host.run("docker compose up -d --wait redis")
    host.wait_until(lambda: host.readiness()["status"] == "ready")
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_a_restore_repeats_the_erasures_since_the_backup(host: Host) -> None:
    host.follow("back-up-and-upgrade.md", "Backups", 1)
    Known.erased = erase(host, "erased-late")["id"]
    host.follow("back-up-and-upgrade.md", "Restore", 1)
    host.wait_until(lambda: host.readiness()["status"] == "ready", 120)
    assert host.get(f"/v1/erasures/{Known.erased}")["state"] == "completed"
    host.wait_until(lambda: host.get(f"/v1/models/{Known.model}")["counts"]["train"] == 20, 120)
    assert host.running() == {**SERVICES, "worker": 2}
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_a_lost_store_is_restored_from_its_backup(host: Host) -> None:
    host.follow("back-up-and-upgrade.md", "Backups", 1)
    lost, restored = commands("back-up-and-upgrade.md", "Restore")[2].split(" &&\n", 1)
    host.run(f"{lost} && docker volume rm {host.project}_artifacts")
    host.run(restored)
    host.follow("back-up-and-upgrade.md", "Restore", 1)
    host.wait_until(lambda: host.readiness()["status"] == "ready", 120)
    assert host.get(f"/v1/erasures/{Known.erased}")["state"] == "completed"
    assert host.get(f"/v1/models/{Known.model}")["counts"]["train"] == 20
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_the_signing_key_can_be_rotated(host: Host) -> None:
    before = host.get("/v1/register/key")["public_key"]
    (host.folder / OVERRIDE).write_text(override("keep-evidence.md", "Rotate the signing key"))
    host.follow("keep-evidence.md", "Rotate the signing key")
    host.wait_until(lambda: host.readiness()["status"] == "ready")
    host.post("/v1/erasures", {"subject": "nobody"})  # a leaf; the request waits, because it matches nothing
    keys = host.get("/v1/register/key")
    assert keys["public_key"] != before
    assert [key["public_key"] for key in keys["earlier"]] == [before]
    (host.folder / OVERRIDE).unlink()
    (host.folder / "secrets" / "amend_signing_key_previous").unlink()
    host.run("docker compose up -d --wait")
    assert host.run("docker compose exec -T -e AMEND_KEY api amend receipts verify")


def test_secrets_can_be_replaced(host: Host) -> None:
    before = host.admin_key
    host.follow("secure.md", "Replace the admin key")
    assert host.admin_key != before
    host.wait_until(lambda: host.client(before).get("/v1/models").status_code == 401)
    names = ("amend_database_password", "mlflow_database_password", "amend_mlflow_password")
    passwords = {name: host.secret(name) for name in names}
    host.follow("secure.md", "Replace passwords")
    assert all(host.secret(name) != password for name, password in passwords.items())
    host.wait_until(lambda: host.readiness()["status"] == "ready")
    assert host.client(Known.key).get("/v1/models").status_code == 200
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_an_upgrade_migrates_the_database_first(host: Host) -> None:
    versions = host.folder / "migrations" / "versions"
    before = max(path.name[:4] for path in versions.glob("[0-9]*.py"))
    (versions / "9999_next.py").write_text(MIGRATION.format(before=before))
    host.follow("back-up-and-upgrade.md", "Upgrades", 0)
    query = "select version_num from alembic_version"
    assert host.run(f"docker compose exec -T postgres psql -U postgres -d amend -Atc '{query}'").strip() == "9999"
    host.wait_until(lambda: host.readiness()["status"] == "ready")
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_ray_can_be_added_and_removed(host: Host) -> None:
    settings, start, remove = commands("scale.md", "Ray on one host")
    host.set(**dict(line.split("=") for line in settings.split()))
    host.run(start)
    status = "docker compose exec -T ray-head ray status"
    # the head, two nodes, and that of the worker; the head has no status at first
    host.wait_until(lambda: len(re.findall(r"^ 1 node_", host.run(status), re.MULTILINE)) == 4, 120)
    wanted = {**SERVICES, "worker": 2, "ray-head": 1, "ray-node": 2, "worker-ray": 1}
    assert host.running() == wanted
    host.run("docker compose up -d --wait")
    assert host.running() == wanted
    assert host.adapted(Known.model)["state"] == "succeeded"
    check_containers(host)

    lost = host.containers("ray-node")[0]
    (network,) = lost["NetworkSettings"]["Networks"]
    host.run(f"docker network disconnect {network} {lost['Id']}")
    host.wait_until(lambda: "unhealthy" in host.health("ray-node"), 120)
    host.run(f"docker network connect {network} {lost['Id']}")
    host.run(f"docker restart {lost['Id']}")
    host.wait_until(lambda: host.health("ray-node") == {"healthy"}, 120)

    host.set(COMPOSE_PROFILES=None, AMEND_RAY_NODES=None, AMEND_QUEUES=None)
    host.run(remove)
    assert host.running() == {**SERVICES, "worker": 2}
    assert host.adapted(Known.model)["state"] == "succeeded"


def test_everything_moves_to_another_host(host: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    champion = host.champion(Known.model)
    old, new = 0, 1
    host.follow("back-up-and-upgrade.md", "Move to another host", old)
    assert host.running() == {}
    other = Host(tmp_path_factory.mktemp("other-host"), f"{host.project}-moved")
    try:
        copied = " ".join(("amend.dump", "mlflow.dump", "artifacts.tar", "mlflow.tar", "secrets", "migrations"))
        host.run(f"cp -r {copied} {other.folder}")
        other.follow("back-up-and-upgrade.md", "Move to another host", new)
        other.wait_until(lambda: other.readiness()["status"] == "ready")
        assert other.champion(Known.model) == champion
        assert other.get(f"/v1/erasures/{Known.erased}")["state"] == "completed"
        assert other.adapted(Known.model)["state"] == "succeeded"
        verified = other.run("docker compose exec -T -e AMEND_KEY api amend receipts verify")
        assert verified
    finally:
        other.remove()
