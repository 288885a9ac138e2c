"""When a worker counts as alive: for /readyz and for the health checks of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

import worker.__main__ as main
from core.settings import Settings
from tests import servers


def test_a_worker_without_a_connection_is_alive_only_while_the_broker_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = -1e9
    with servers.redis() as broker:
        settings = Settings(home=tmp_path, broker_url=broker.url)
        main.note_connection()
        assert main.is_alive(settings)
        monkeypatch.setattr(main, "connected_at", long_ago)
        assert not main.is_alive(settings)
    down = Settings(home=tmp_path, broker_url=f"redis://127.0.0.1:{servers.free_port()}/0")
    assert main.is_alive(down)
