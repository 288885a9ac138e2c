"""The processes of ``amend up``: commands, environments, addresses and the order in which they stop."""

import math
import os
import secrets
import sys
from pathlib import Path

from amend.up.preflight import CannotStart, free_ports
from amend.up.process import Process

LOOPBACK = "127.0.0.1"
SECRETS_FOLDER = Path(os.environ.get("AMEND_SECRETS", "/run/secrets"))
"""Folder in which the processes look for settings that are not in the environment."""


class Stack:
    """The processes, configured by the environment. Raises CannotStart if they could not run."""

    def __init__(self, home: Path) -> None:
        self.home, self.logs = home, home / "logs"
        self.elsewhere = [name for name in ("database", "broker", "mlflow") if read_setting(f"{name}_url")]
        host = os.environ.get("AMEND_HOST") or LOOPBACK
        wanted = {"AMEND_PORT": (host, os.environ.get("AMEND_PORT") or "8000")}
        if "mlflow" not in self.elsewhere:
            wanted["AMEND_MLFLOW_PORT"] = (LOOPBACK, os.environ.get("AMEND_MLFLOW_PORT") or "5000")
        ports = free_ports(wanted)
        self.url = f"http://{url_host(host)}:{ports['AMEND_PORT']}"
        self.environment = os.environ | {"AMEND_HOME": str(home), "AMEND_PORT": str(ports["AMEND_PORT"])}
        self.mlflow_url = ""
        self.mlflow_key = home / "mlflow.key"
        """The file with MLflow's password, unless AMEND_MLFLOW_PASSWORD is set."""
        if "mlflow" not in self.elsewhere:
            self.mlflow_url = f"http://{LOOPBACK}:{ports['AMEND_MLFLOW_PORT']}"
            password = read_setting("mlflow_password") or load_password(self.mlflow_key)
            self.environment |= {"AMEND_MLFLOW_URL": self.mlflow_url, "AMEND_MLFLOW_PASSWORD": password}

        self.migrate = self.part("migrate", "migrations")
        # In the order of stopping: first the sources of new work, then the worker, then what the worker needs.
        self.stages = [
            [self.part("service", "service"), self.part("scheduler", "worker.scheduler")],
            [self.part("worker", "worker", stop_timeout=seconds_to_stop() + 15)],
        ]
        self.independent: list[Process] = []
        """Processes that do not need the database and start first."""
        self.held: list[Process] = []
        """MLflow, until `release_mlflow`."""
        if "mlflow" not in self.elsewhere:
            mlflow = self.mlflow(ports["AMEND_MLFLOW_PORT"])
            mlflow.restart_at = math.inf
            self.held.append(mlflow)
        if "broker" not in self.elsewhere:
            self.independent.append(self.part("broker", "worker.broker"))
        self.stages += [[part] for part in (*self.held, *self.independent)]

    def release_mlflow(self) -> None:
        """Let the supervisor start MLflow at its next check."""
        while self.held:
            self.held.pop().restart_at = 0.0

    def part(self, name: str, module: str, stop_timeout: float = 15.0) -> Process:
        # -P: otherwise a folder of the same name in the current directory would be run instead.
        command = [sys.executable, "-P", "-m", module]
        return Process(name, command, self.logs / f"{name}.log", self.environment, stop_timeout=stop_timeout)

    def mlflow(self, port: int) -> Process:
        folder = self.home / "mlflow"
        if "%" in str(folder):
            # MLflow writes to this path but decodes it when it deletes files.
            raise CannotStart(f"AMEND_HOME: MLflow does not support % in a path: {self.home}. Choose another.")
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "amend.up.mlflow_server", str(folder), str(port)]
        # MLflow must not see Amend's other secrets.
        ours = {name for name in self.environment if name.startswith("AMEND_")} - {"AMEND_MLFLOW_PASSWORD"}
        environment = {name: value for name, value in self.environment.items() if name not in ours}
        return Process("mlflow", command, self.logs / "mlflow.log", environment, folder)


def read_setting(setting: str) -> str:
    """A setting from the environment or the secrets folder; empty if it is not set."""
    file = SECRETS_FOLDER / f"amend_{setting}"
    return os.environ.get(f"AMEND_{setting.upper()}") or (file.read_text().strip() if file.is_file() else "")


def load_password(file: Path) -> str:
    """Read the password from a file, or create it. The lock on the home folder prevents a race."""
    found = file.read_text().strip() if file.exists() else ""
    if not found:
        found, new = secrets.token_urlsafe(32), file.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(f"{found}\n")
        os.replace(new, file)
    return found


def url_host(host: str) -> str:
    """The host, as written in a URL, at which a server on this machine is reached.

    >>> [url_host(host) for host in ("127.0.0.1", "0.0.0.0", "::", "fd00::7")]
    ['127.0.0.1', '127.0.0.1', '[::1]', '[fd00::7]']
    """
    here = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"[{here}]" if ":" in here else here


def seconds_to_stop() -> float:
    try:
        return float(os.environ.get("AMEND_SHUTDOWN_TIMEOUT") or 8)
    except ValueError:
        return 8.0  # the migration reports the invalid setting
