"""Settings: by environment, with defaults that need nothing, and a secret that is made once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from core.settings import Settings, kept_secret

SHOW = "from core.settings import Settings; print(Settings().secret.decode())"


def test_everything_has_a_default_under_home(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "new" / "home")
    assert settings.database == f"sqlite:///{tmp_path}/new/home/amend.db"
    assert settings.artifacts == f"{tmp_path}/new/home/artifacts"
    assert settings.folder.stat().st_mode & 0o777 == 0o700


def test_the_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_HOME", str(tmp_path))
    monkeypatch.setenv("AMEND_DATABASE_URL", "postgresql+psycopg://h/d")
    monkeypatch.setenv("AMEND_PROCESSES", "3")
    monkeypatch.setenv("AMEND_SECRET_KEY", "word")
    settings = Settings()
    assert (settings.folder, settings.database, settings.processes) == (tmp_path, "postgresql+psycopg://h/d", 3)
    assert settings.secret == b"word"
    assert not (tmp_path / "secret.key").exists()


def test_secrets_do_not_show(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, secret_key="hidden-word", admin_key="hidden-word")
    assert "hidden-word" not in repr(settings)


@pytest.mark.parametrize(("name", "value"), [("PORT", "99999"), ("PROCESSES", "0"), ("LOG_LEVEL", "loud")])
def test_senseless_values_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"AMEND_{name}", value)
    with pytest.raises(ValidationError):
        Settings()


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = Settings(home=tmp_path).secret
    assert len(first) >= 32
    assert Settings(home=tmp_path).secret == first
    assert [file.name for file in tmp_path.iterdir()] == ["secret.key"]
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_processes_that_start_together_get_the_same_secret(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", SHOW], {"AMEND_HOME": str(tmp_path), "PATH": ""}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["secret.key"]


def test_callers_with_the_same_process_number_get_the_same_secret(tmp_path: Path) -> None:
    """Threads, or containers: in each of them the service may be process 1."""
    for i in range(20):
        path = tmp_path / f"secret-{i}.key"
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(kept_secret, [path] * 8))) == 1
    assert len(list(tmp_path.iterdir())) == 20
