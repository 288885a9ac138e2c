"""A Ray cluster of several nodes on this machine, whose nodes can be killed."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.endurance.fleet import children

SIZE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
QUICK = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}
"""A node that is gone is noticed in a second, not in a quarter of a minute."""


TOKEN = secrets.token_hex(32)
"""The same for all clusters of this process, since Ray reads it once."""


class RayCluster:
    """Each node has one processor and the environment that is given."""

    def __init__(self, environment: dict[str, str], nodes: int) -> None:
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        self.nodes: list[Any] = []
        self.folder = TemporaryDirectory(prefix="ray", dir="/tmp")  # a short path, since sockets are in it
        self.environment = {**environment, **self.token, **QUICK, "RAY_TMPDIR": self.folder.name}
        with as_environment(self.environment):
            from ray.cluster_utils import Cluster  # which reads, once, whether tokens are asked for

            self.cluster = Cluster(initialize_head=True, head_node_args={**SIZE, "include_dashboard": False})
        for _ in range(nodes - 1):
            self.add_node()

    def add_node(self) -> None:
        with as_environment(self.environment):
            self.nodes.append(self.cluster.add_node(**SIZE))

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_node(self, task: int) -> None:
        """kill -9 the node that runs a task, and all of its processes."""
        [node] = [node for node in self.nodes if task in children(raylet_of(node))]
        raylet = raylet_of(node)
        os.kill(raylet, signal.SIGSTOP)
        for process in (*children(raylet), raylet):
            os.kill(process, signal.SIGKILL)
        self.nodes.remove(node)

    @contextmanager
    def paused_tasks(self) -> Iterator[None]:
        """No task gets further meanwhile."""
        stopped = self.workers()
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def kill_head(self) -> None:
        """kill -9 the server that knows all nodes; they themselves live on for a while, but finish no task."""
        for process in self.workers():
            os.kill(process, signal.SIGSTOP)
        [server] = self.cluster.head_node.all_processes["gcs_server"]
        os.kill(server.process.pid, signal.SIGKILL)

    def tasks(self) -> list[int]:
        """Processes that compute something for a job, not on the head node."""
        return [task for node in self.nodes for task in children(raylet_of(node)) if is_at_work(task)]

    def workers(self) -> list[int]:
        """The processes for tasks, of all nodes."""
        every = [each for node in (self.cluster.head_node, *self.nodes) for each in children(raylet_of(node))]
        return [each for each in every if b"Agent" not in name_of(each)]

    def stop(self) -> None:
        for process in self.workers():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with as_environment(self.environment):
            self.cluster.shutdown()
        self.folder.cleanup()


def raylet_of(node: Any) -> int:
    [process] = node.all_processes["raylet"]
    return int(process.process.pid)


def is_at_work(process: int) -> bool:
    return name_of(process).startswith((b"ray::add_shard", b"ray::Member"))


def name_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextmanager
def as_environment(environment: dict[str, str]) -> Iterator[None]:
    """Processes that are started inside have it."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
