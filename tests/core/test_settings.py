"""Settings: environment variables, defaults, and the generated secret."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from core.database import Database
from core.settings import Settings, load_or_create_secret

SHOW = "from core.settings import Settings; print(Settings().secret.decode())"


def test_everything_has_a_default_under_home(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "new" / "home")
    assert settings.database == f"sqlite:///{tmp_path}/new/home/amend.db"
    assert settings.artifacts == f"{tmp_path}/new/home/artifacts"
    assert settings.folder.stat().st_mode & 0o777 == 0o700


def test_the_home_folder_may_have_special_characters(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "a b#c?d%20é")
    with Database(settings).engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE note (line text)")
    assert (tmp_path / "a b#c?d%20é" / "amend.db").exists()
    assert not set("#?%") & set(settings.broker)


def test_the_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_HOME", str(tmp_path))
    monkeypatch.setenv("AMEND_DATABASE_URL", "postgresql+psycopg://h/d")
    monkeypatch.setenv("AMEND_PROCESSES", "3")
    monkeypatch.setenv("AMEND_SECRET_KEY", "word")
    settings = Settings()
    assert (settings.folder, settings.database, settings.processes) == (tmp_path, "postgresql+psycopg://h/d", 3)
    assert settings.secret == b"word"
    assert not (tmp_path / "secret.key").exists()


def test_the_repr_of_settings_contains_no_secrets(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, secret_key="hidden-word", admin_key="hidden-word")
    assert "hidden-word" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "99999"), ("PROCESSES", "0"), ("LOG_LEVEL", "loud"), ("CORS_ORIGINS", "app")]
)
def test_invalid_values_are_rejected(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"AMEND_{name}", value)
    with pytest.raises(ValidationError):
        Settings()


def test_the_secret_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
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


def test_callers_with_the_same_process_id_get_the_same_secret(tmp_path: Path) -> None:
    """Threads, or containers: in each of them the service may be process 1."""
    for i in range(20):
        path = tmp_path / f"secret-{i}.key"
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(load_or_create_secret, [path] * 8))) == 1
    assert len(list(tmp_path.iterdir())) == 20


def test_the_database_password_may_be_a_separate_setting(tmp_path: Path) -> None:
    given = {"home": tmp_path, "database_password": "p@ss:/word"}
    urls = {"postgresql://amend@host/amend": "p@ss:/word", "postgresql://amend:own@host/amend": "own", "": None}
    for url, password in urls.items():
        assert Database(Settings.model_validate({**given, "database_url": url})).engine.url.password == password


def test_secrets_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "amend_secret_key").write_text("from a file\n")
    environment = {"AMEND_HOME": str(tmp_path), "AMEND_SECRETS": str(tmp_path), "PATH": ""}
    shown = subprocess.run([sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout == "from a file\n"


def test_a_misspelt_setting_is_reported_once_with_a_suggestion(tmp_path: Path) -> None:
    given = {"AMEND_HOME": str(tmp_path), "AMEND_QEUES": "long", "AMEND_ZZZ": "1", "AMEND_URL": "http://host"}
    command = [sys.executable, "-c", "from core.settings import from_environment as get; get(), get()"]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, check=True)
    misspelt = "Unknown setting AMEND_QEUES. Did you mean AMEND_QUEUES?"
    assert done.stderr.splitlines() == [misspelt, "Unknown setting AMEND_ZZZ."]
