"""docker-compose.yml without an engine: every service is run as a process, by the command that the file has for it.

What an engine would do is done by hand: names and ports of services become ports of this machine; volumes, tmpfs and
secrets become folders. Of PostgreSQL's and Redis' images the programs are here, and what the entrypoints do first.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests import servers
from tests.production.image import ROOT, Installed, stages
from tests.servers import NOBODY, Program, as_root, die_with_parent, free_port

FILE = ROOT / "docker-compose.yml"
PING = """#!{python}
import sys
from redis import Redis
print(Redis(port=int(sys.argv[sys.argv.index("-p") + 1])).ping())
"""
"""Stands in for redis-cli, where there is none."""


def read(given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file as an engine understands it, with variables replaced."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        if not isinstance(value, str):
            return value

        def variable(found: re.Match[str]) -> str:
            return "$" if found[0] == "$$" else (given or {}).get(found[1]) or found[2]

        return re.sub(r"\$\$|\$\{(\w+):-([^}]*)\}", variable, value)

    spec: dict[str, Any] = filled(yaml.safe_load(FILE.read_text()))
    for service in spec["services"].values():
        # a variable without a value is that of .env, or not set
        variables = service.get("environment", {}).items()
        passed = {name: (given or {}).get(name) if value is None else value for name, value in variables}
        service["environment"] = {name: value for name, value in passed.items() if value is not None}
    return spec


def seconds(text: str) -> float:
    """Of a duration; the file has no other units."""
    assert text.endswith("s"), text
    return float(text[:-1])


class Container:
    """One process of a service, in a folder of its own."""

    def __init__(self, project: Project, service: str, number: int, volumes: Mapping[str, Path]) -> None:
        self.project, self.service, self.number = project, service, number
        self.spec: dict[str, Any] = project.spec["services"][service]
        self.ours = "amend" in self.spec["image"]
        # PostgreSQL does not run as root, so its folder is one that others can get into
        self.program = None if self.ours else Program(service)
        self.folder = self.program.folder if self.program else project.folder / f"{service}-{number}"
        self.folder.mkdir(exist_ok=True)
        self.log = project.folder / f"{service}-{number}.log"
        self.paths = {"/run/secrets": self.folder / "secrets"}
        self.paths |= {path: self.folder / path.strip("/").replace("/", "-") for path in self.spec.get("tmpfs", [])}
        for volume in self.spec.get("volumes", []):
            name, target = volume.split(":")
            self.paths[target] = volumes.get(name) or (project.volumes if self.ours else self.folder) / name
        for path in self.paths.values():
            path.mkdir(parents=True, exist_ok=True)
            if self.program and as_root():
                os.chown(path, NOBODY, NOBODY)
        for name in self.spec.get("secrets", []):
            shutil.copy(project.folder / project.spec["secrets"][name]["file"], self.paths["/run/secrets"] / name)
        self.process: subprocess.Popen[bytes] | None = None
        self.healthy = False

    def local(self, text: str) -> str:
        """A text of the file with addresses and paths as they are here."""
        text = text.replace("0.0.0.0", "127.0.0.1")
        for (name, port), here in self.project.ports.items():
            text = re.sub(rf"\b{name}:{port}\b", f"127.0.0.1:{here}", text)
            if name == self.service:
                text = re.sub(rf"(?<![\w.]){port}\b", str(here), text)
        places = "|".join(map(re.escape, sorted(self.paths, key=len, reverse=True)))
        return re.sub(rf"(?<![\w.])({places})(?=[/'\"\s]|$)", lambda found: str(self.paths[found[1]]), text)

    @property
    def environment(self) -> dict[str, str]:
        """What the image and the file say, and what the place of things here makes necessary."""
        given = {name: self.local(str(value)) for name, value in self.spec.get("environment", {}).items()}
        if self.ours:
            image = stages()["runtime"].environment({})
            own = {name: self.local(value) for name, value in image.items() if name != "PATH"}
            return {**own, **self.project.installed.environment, "AMEND_SECRETS": self.local("/run/secrets"), **given}
        path = f"{self.project.programs}:{self.project.postgres_programs}:{os.defpath}"
        port = next(here for (name, _), here in self.project.ports.items() if name == self.service)
        return {"PATH": path, "PGPORT": str(port), "PGDATA": self.local("/var/lib/postgresql/data"), **given}

    def start(self) -> None:
        command = [self.local(word) for word in self.spec["command"]]
        if command[0] == "postgres":
            self.initialise()
            command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        if command[0] == "redis-server":
            command = [str(servers.redis_binary(self.folder)), *command[1:], "--bind", "127.0.0.1"]
        self.process = self.spawn(command)
        if command[0] == "postgres":
            self.make_databases()

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        user = NOBODY if self.program and as_root() else None
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [shutil.which(command[0], path=self.environment["PATH"]) or command[0], *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

    def initialise(self) -> None:
        """What the entrypoint of PostgreSQL's image does first: a cluster with the superuser's password."""
        password = self.local(self.spec["environment"]["POSTGRES_PASSWORD_FILE"])
        options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password}", "--locale=C", "-E", "UTF8"]
        assert self.spawn(["initdb", "--no-sync", *options]).wait() == 0, self.log.read_text()

    def make_databases(self) -> None:
        """And then: the scripts that it is given."""
        (script,) = self.spec["configs"]
        assert script["target"].startswith("/docker-entrypoint-initdb.d/")
        content = self.local((ROOT / self.project.spec["configs"][script["source"]]["file"]).read_text())
        password = Path(self.local(self.spec["environment"]["POSTGRES_PASSWORD_FILE"])).read_text()
        environment = {**self.environment, "PGPASSWORD": password, "PGHOST": "127.0.0.1", "PGUSER": "postgres"}
        program = self.project.postgres_programs / "psql"
        run = [program, "--set=ON_ERROR_STOP=1", "--no-psqlrc", "--quiet"]
        while not self.checked(["pg_isready", "--host=127.0.0.1"]):
            assert self.alive, self.log.read_text()
            time.sleep(0.05)
        subprocess.run(run, input=content, text=True, env=environment, check=True)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def looks_healthy(self) -> bool:
        """Whether the health check of the file succeeds."""
        test = self.spec["healthcheck"]["test"]
        command = ["sh", "-c", test] if isinstance(test, str) else test[1:]
        self.healthy = self.alive and self.checked([self.local(word) for word in command])
        return self.healthy

    def checked(self, command: list[str]) -> bool:
        program = shutil.which(command[0], path=self.environment["PATH"])
        assert program, command
        run = subprocess.run([program, *command[1:]], env=self.environment, capture_output=True, cwd=self.folder)
        return run.returncode == 0

    def tell_to_stop(self) -> None:
        """By the signal of the file."""
        assert self.process is not None
        self.process.send_signal(signal.Signals[self.spec.get("stop_signal", "SIGTERM")])

    def ended(self) -> int | None:
        """How it ended in the time that the file gives it; None if it did not."""
        assert self.process is not None
        try:
            return self.process.wait(seconds(self.spec.get("stop_grace_period", "10s")))
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.remove()

    def remove(self) -> None:
        """End whatever is left of it."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def processes(self) -> list[int]:
        """Those of this container."""
        assert self.process is not None
        every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [pid for pid in every if session_of(pid) == self.process.pid]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


class Project:
    """The services of the file that no profile keeps out."""

    def __init__(self, folder: Path, installed: Installed, **variables: str) -> None:
        self.folder, self.installed = folder, installed
        self.spec = read(variables)
        self.volumes = folder / "volumes"
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True)
        if not shutil.which("redis-cli"):
            (self.programs / "redis-cli").write_text(PING.format(python=sys.executable))
            (self.programs / "redis-cli").chmod(0o755)
        else:
            (self.programs / "redis-cli").symlink_to(shutil.which("redis-cli") or "")
        self.tools = Program("tools")
        self.postgres_programs = servers.postgres_binaries(self.tools.folder)
        self.names = [name for name, service in self.spec["services"].items() if "profiles" not in service]
        said = str([self.spec["services"][name].get("environment") for name in self.names])
        addresses = re.findall(rf"\b({'|'.join(self.names)}):(\d+)\b", said)
        published = [(n, p.rpartition(":")[2]) for n in self.names for p in self.spec["services"][n].get("ports", [])]
        self.ports = {address: free_port() for address in {*addresses, *published}}
        self.containers: list[Container] = []
        subprocess.run(["make", "-f", str(ROOT / "Makefile"), "secrets"], cwd=folder, check=True, capture_output=True)

    def port(self, service: str) -> int:
        return next(here for (name, _), here in self.ports.items() if name == service)

    def secret(self, name: str) -> str:
        return (self.folder / self.spec["secrets"][name]["file"]).read_text().strip()

    def of(self, service: str) -> list[Container]:
        return [container for container in self.containers if container.service == service]

    def container(self, service: str, **volumes: Path) -> Container:
        """Another one of a service, not started."""
        self.containers.append(Container(self, service, len(self.of(service)) + 1, volumes))
        return self.containers[-1]

    def up(self) -> None:
        """Start everything, each when what it depends on is there; wait until all are healthy."""
        waiting, end = list(self.names), time.monotonic() + 120
        checked = [name for name in self.names if not self.spec["services"][name]["healthcheck"].get("disable")]
        while waiting or not all(each.healthy or each.looks_healthy() for name in checked for each in self.of(name)):
            for name in [name for name in waiting if self.may_start(name)]:
                waiting.remove(name)
                for _ in range(int(self.spec["services"][name]["deploy"].get("replicas", 1))):
                    self.container(name).start()
            ended = [each for each in self.containers if each.process and each.process.poll()]
            if ended or time.monotonic() > end:
                logs = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))
                raise AssertionError(f"waiting: {waiting}; ended: {[each.service for each in ended]}\n{logs}")
            time.sleep(0.2)

    def may_start(self, name: str) -> bool:
        """Whether the conditions are met under which a service starts."""
        for other, wanted in self.spec["services"][name].get("depends_on", {}).items():
            there = self.of(other)
            if not there:
                return False
            if wanted["condition"] == "service_completed_successfully":
                if any(each.process is None or each.process.poll() != 0 for each in there):
                    return False
            elif not all(each.healthy or each.looks_healthy() for each in there):
                return False
        return True

    def down(self) -> dict[str, int | None]:
        """Stop everything as an engine does, nothing before what depends on it; how each container ended."""
        ended: dict[str, int | None] = {}
        while alive := [each for each in self.containers if each.alive]:
            needed = {name for each in alive for name in self.needs(each.service)}
            free = [each for each in alive if each.service not in needed]
            for each in free:
                each.tell_to_stop()
            ended |= {f"{each.service}-{each.number}": each.ended() for each in free}
        return ended

    def needs(self, name: str) -> set[str]:
        """The services that one depends on, also by way of another."""
        direct = set(self.spec["services"][name].get("depends_on", {}))
        return direct.union(*map(self.needs, direct))

    def remove(self) -> None:
        for container in self.containers:
            container.remove()
            if container.program:
                container.program.stop()
        self.tools.stop()
