"""The health check of containers with Ray nodes."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.servers import free_port
from worker.ray_health import check


def test_a_node_is_healthy_while_it_has_a_connection_to_the_head() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert "connected" in (check(address) or "")  # the head responds, but no node has joined it
        node = socket.create_connection(head.getsockname())
        accepted, _ = head.accept()
        assert check(address) is None
        accepted.close()
        node.close()
        head.accept()[0].close()  # the connection of the check
    assert "connected" in (check(address) or "")


def test_a_node_is_unhealthy_if_the_head_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = head.getsockname()
        with socket.create_connection(address), head.accept()[0]:
            assert "Cannot connect" in (check(f"127.0.0.2:{address[1]}") or "")


def test_the_check_imports_nothing_that_is_slow_to_load() -> None:
    code = "import sys, worker.ray_health; print('ray' in sys.modules, 'celery' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    exit_status = subprocess.run([sys.executable, "-m", "worker.ray_health", f"127.0.0.1:{free_port()}"]).returncode
    assert exit_status == 1
