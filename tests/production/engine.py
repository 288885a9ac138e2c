"""A deployment in a real container engine, operated by the commands of the documentation.

Requires an engine (DOCKER_HOST) with Compose and BuildKit, and an index with CPU builds of torch
(AMEND_TEST_TORCH_INDEX). COMPOSE_FILE may add an override for builds on the machine at hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.production.image import ROOT
from tests.servers import free_port
from tests.worker.deployment import Deployment

PAGES = ROOT / "docs" / "how-to" / "operate"
COMMAND_SECONDS = 1800
OVERRIDE = "docker-compose.override.yml"


@cache
def missing() -> str:
    """Why tests with an engine cannot run; empty if they can."""
    if not os.environ.get("DOCKER_HOST"):
        return "DOCKER_HOST is not set"
    for command in (["docker", "version"], ["docker", "compose", "version"], ["docker", "buildx", "version"]):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            return f"`{' '.join(command)}` failed ({type(error).__name__})"
    return ""


def commands(page: str, heading: str) -> list[str]:
    """The indented blocks of a section, in order."""
    section = re.sub(r"^```.*?^```", "", below(page, heading), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"(?:^    .*\n)+", re.split(r"^#+ ", section, flags=re.MULTILINE)[0], re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def override(page: str, heading: str) -> str:
    """The first YAML file of a section."""
    found = re.search(r"^```yaml\n(.*?)^```", below(page, heading), flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def below(page: str, heading: str) -> str:
    """The text of a page after a heading."""
    return re.split(rf"^#+ {re.escape(heading)}$", (PAGES / page).read_text(), flags=re.MULTILINE)[1]


class Host(Deployment):
    """A folder with the repository, from which Compose runs a project of its own."""

    def __init__(self, folder: Path, project: str) -> None:
        super().__init__(folder)
        self.project = project
        self.ports = {"8000": self.port, "5000": free_port()}
        self.variables: dict[str, str] = {}
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in listed.stdout.split("\n"):
            if name and (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self.set(AMEND_LISTEN=f"127.0.0.1:{self.ports['8000']}", MLFLOW_LISTEN=f"127.0.0.1:{self.ports['5000']}")

    @property
    def admin_key(self) -> str:
        return self.secret("amend_admin_key")

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text().strip()

    def set(self, **variables: str | None) -> None:
        """Write variables to .env; None removes one."""
        self.variables |= {name: value for name, value in variables.items() if value is not None}
        for name in [name for name, value in variables.items() if value is None]:
            self.variables.pop(name, None)
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in self.variables.items()))

    def run(self, script: str) -> str:
        """Run a block of the documentation as it is, with the ports and the index of this machine; its output."""
        for port, here in self.ports.items():
            script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{here}")
        script = script.replace("TORCH_INDEX=URL", f"TORCH_INDEX={os.environ.get('AMEND_TEST_TORCH_INDEX', '')}")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AMEND_")}
        if (self.folder / OVERRIDE).exists():
            environment["COMPOSE_FILE"] = f"{os.environ.get('COMPOSE_FILE', 'docker-compose.yml')}:{OVERRIDE}"
        environment |= {"COMPOSE_PROJECT_NAME": self.project, "COMPOSE_PROGRESS": "plain", "BUILDKIT_PROGRESS": "plain"}
        if (self.folder / "secrets" / "amend_admin_key").exists():
            environment["AMEND_KEY"] = self.admin_key
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def follow(self, page: str, heading: str, *numbers: int) -> str:
        """Run the blocks of a section, or some of them; their output."""
        found = commands(page, heading)
        return "".join(self.run(found[number]) for number in numbers or range(len(found)))

    def containers(self, *services: str, running: bool = True) -> list[dict[str, Any]]:
        """What the engine knows about the containers of services, or of all."""
        ids = self.run(f"docker compose --profile '*' ps {'' if running else '-a'} -q {' '.join(services)}").split()
        found = json.loads(self.run(f"docker inspect {' '.join(ids)}")) if ids else []
        return list(found)

    def running(self) -> dict[str, int]:  # type: ignore[override]
        """The number of running containers by service."""
        names = [each["Config"]["Labels"]["com.docker.compose.service"] for each in self.containers()]
        return {name: names.count(name) for name in sorted(set(names))}

    def health(self, service: str) -> set[str]:
        return {each["State"]["Health"]["Status"] for each in self.containers(service)}

    def readiness(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.connection.get("/readyz").json()
        return answer

    def remove(self) -> None:
        self.run("docker compose --profile '*' down --volumes --timeout 5")
