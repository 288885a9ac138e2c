"""All settings, in one typed place: environment variables AMEND_<NAME>, or files amend_<name> in /run/secrets."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.errors import Invalid

MAX_SOCKET_PATH_BYTES = 100
"""The longest path of a Unix socket that every system accepts."""
SECRETS_FOLDER = Path(os.environ.get("AMEND_SECRETS", "/run/secrets"))
"""Where secrets that are given as files are; container engines put them into /run/secrets."""
OTHER_VARIABLES = ("SECRETS", "URL", "KEY", "MLFLOW_PORT")
"""Variables AMEND_... that are not settings of these processes: the one above, and those of the `amend` command."""


class Settings(BaseSettings):
    """What an operator can set. The defaults are the embedded way to run."""

    model_config = SettingsConfigDict(
        env_prefix="AMEND_",
        secrets_dir=SECRETS_FOLDER if SECRETS_FOLDER.is_dir() else None,
        extra="ignore",
        frozen=True,
    )

    home: Path = Field(Path("~/.amend"), description="Folder of everything that the embedded way to run writes.")
    database_url: str = Field("", description="SQLAlchemy URL. Empty: SQLite in the home folder.")
    database_password: SecretStr = Field(SecretStr(""), description="Where the database's URL has none.")
    artifacts_url: str = Field("", description="fsspec URL or folder of version files. Empty: in the home folder.")
    broker_url: str = Field("", description="Redis or Valkey that carries jobs to workers. Empty: Valkey at home.")
    mlflow_url: str = Field("", description="MLflow tracking server.")
    mlflow_password: SecretStr = Field(
        SecretStr(""), description="Of the user `amend` there. Empty: MLFLOW_TRACKING_USERNAME and _PASSWORD, if any."
    )
    mlflow_pages_url: str = Field(
        "", description="MLflow's pages as browsers reach them, where that is another address. Empty: mlflow_url."
    )
    secret_key: SecretStr = Field(SecretStr(""), description="Key of subject hashes. Empty: a file in the home folder.")
    admin_key: SecretStr = Field(SecretStr(""), description="The first admin key. Empty: made, and written to a file.")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    processes: int = Field(1, ge=1, le=256, description="API processes; SQLite and PostgreSQL both serve several.")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")

    pool_size: int = Field(10, ge=1, description="Database connections of one process; as many can write at once.")
    pool_overflow: int = Field(10, ge=1, description="Connections beyond that in a rush.")
    database_patience: float = Field(
        30.0, gt=0, description="Seconds to wait for a connection or another's lock before answering 503."
    )

    max_body_bytes: int = Field(64 * 2**20, ge=1024)
    max_batch: int = Field(100_000, ge=1, description="Examples, ids or inputs in one request.")
    max_parameters: int = Field(50_000_000, ge=1, description="Weights of one model.")
    max_wait: float = Field(60.0, ge=0, description="Longest long poll, in seconds.")
    max_connections: int = Field(1000, ge=1, description="Open connections of one process; further ones get a 503.")
    client_patience: float = Field(
        20.0, gt=0, description="Seconds to wait for the headers of a request, or for more of its body."
    )

    rate_limit: float = Field(0.0, ge=0, description="Requests that a key may send in a second. 0: any number.")
    cors_origins: str = Field(
        "", description="Origins of pages that may call from a browser, with commas between them; * for all."
    )

    cache_seconds: float = Field(
        1.0, ge=0, description="How long a process may go on with a key or champion that another process changed."
    )
    idempotency_hours: float = Field(24.0, gt=0, description="How long an answer is kept for a repeated request.")

    caseless_subjects: bool = Field(
        False,
        description="Subjects are the same whatever their case or width (NFKC). To be set before the first of them.",
    )
    private_webhooks: bool = Field(
        False, description="Webhooks may lead to private and loopback addresses: receivers in a network of your own."
    )
    erasure_hold: bool = Field(False, description="Erasures wait for an approval, unless a request says otherwise.")

    queues: str = Field("", description="Which queues a worker serves, with commas between them. Empty: all.")
    worker_processes: int = Field(2, ge=1, le=256, description="Jobs that one worker runs at once; one for each GPU.")
    device: str = Field("auto", pattern="^(auto|cpu|cuda)$", description="auto: the GPU, where there is one.")
    ray_address: str = Field(
        "", description="HOST:PORT of a Ray cluster, for what takes long. Empty: in the worker's process."
    )
    ray_seconds: float = Field(10.0, ge=0, description="A pass or an epoch of more work goes to Ray.")
    ray_processes: int = Field(
        0, ge=0, le=64, description="Processes that train one network together, on Ray. 0: one for each GPU there."
    )
    ray_patience: float = Field(
        60.0, ge=0, description="Seconds for which a job waits for Ray before it does its work alone."
    )
    lease_seconds: float = Field(30.0, gt=1, description="A job whose worker is silent for so long is taken over.")
    max_attempts: int = Field(3, ge=1, le=100, description="How often a job is begun before it has failed.")
    retry_seconds: float = Field(5.0, ge=0, description="Pause before the next attempt.")
    stop_seconds: float = Field(8.0, ge=0, description="A worker told to stop hands its jobs back after so long.")
    resend_seconds: float = Field(30.0, gt=0, description="Workers are told again of a job that none took for so long.")
    tick_seconds: float = Field(5.0, gt=0, description="How often the scheduler looks what is due.")
    worker_silence: float = Field(30.0, gt=0, description="Seconds without a heartbeat after which a worker is down.")

    @field_validator("broker_url")
    @classmethod
    def speaks_redis(cls, url: str) -> str:
        if url and not url.startswith(("redis://", "rediss://", "redis+socket://")):
            raise ValueError("expected redis://HOST:PORT/NUMBER, rediss://... or redis+socket:///PATH")
        return url

    @field_validator("cors_origins")
    @classmethod
    def are_origins(cls, given: str) -> str:
        if any(not re.fullmatch(r"\*|https?://[^/\s,*]+", origin) for origin in split_list(given)):
            raise ValueError("expected https://HOST or https://HOST:PORT, with commas between them, or *")
        return given

    @cached_property
    def folder(self) -> Path:
        """The home folder, made on first use, readable by its owner alone."""
        folder = self.home.expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    @property
    def database(self) -> str:
        # the drivers' usual spellings mean the driver that is here
        url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", self.database_url)
        return url or f"sqlite:///{quote(str(self.folder / 'amend.db'))}"

    @property
    def artifacts(self) -> str:
        return self.artifacts_url or str(self.folder / "artifacts")

    @property
    def queue_names(self) -> list[str]:
        """The queues that a worker serves; none means all."""
        return [name.strip() for name in self.queues.split(",") if name.strip()]

    @property
    def mlflow_pages(self) -> str:
        return (self.mlflow_pages_url or self.mlflow_url).rstrip("/")

    @property
    def broker(self) -> str:
        """The broker's URL; without one, a socket in the home folder, as `python -m worker.broker` serves."""
        return self.broker_url or f"redis+socket://{self.broker_socket}"

    @property
    def broker_socket(self) -> Path:
        path = self.folder / "broker" / "valkey.sock"
        # brokers' clients differ in how they read characters that mean something in a URL
        if len(str(path)) > MAX_SOCKET_PATH_BYTES or quote(str(path)) != str(path):
            name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
            places = (
                Path(folder) / f"amend-{os.getuid()}-{name}" / "valkey.sock"
                for folder in (tempfile.gettempdir(), "/tmp")
            )
            return next((p for p in places if len(str(p)) <= MAX_SOCKET_PATH_BYTES), path)
        return path

    @cached_property
    def secret(self) -> bytes:
        """The key of keyed hashes; without it no subject can be found again."""
        return self.secret_key.get_secret_value().encode() or load_or_create_secret(self.folder / "secret.key").encode()


def split_list(given: str) -> list[str]:
    """What a setting lists with commas.

    >>> split_list("a, b,")
    ['a', 'b']
    """
    return [one.strip() for one in given.split(",") if one.strip()]


def from_environment() -> Settings:
    """The settings of this process; Invalid in words for an operator."""
    warn_of_unknown()
    try:
        settings = Settings()
        _ = settings.folder
        return settings
    except ValidationError as error:
        wrong = [f"AMEND_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
        raise Invalid("settings_invalid", "; ".join(wrong)) from None
    except OSError as error:
        message = f"AMEND_HOME: {error.filename} cannot be used ({error.strerror})"
        raise Invalid("settings_invalid", message) from None


@lru_cache(maxsize=1)
def warn_of_unknown() -> None:
    """Name variables that look like settings and are none: misspelt, one would go unnoticed."""
    for problem in describe_unknown(os.environ):
        print(problem, file=sys.stderr)


def describe_unknown(given: Iterable[str]) -> list[str]:
    """What is wrong with the names of some variables.

    >>> describe_unknown(["AMEND_PORT", "AMEND_DATABSE_URL", "HOME"])
    ['AMEND_DATABSE_URL is no setting of Amend; did you mean AMEND_DATABASE_URL?']
    """
    known = [name.upper() for name in Settings.model_fields] + list(OTHER_VARIABLES)
    found = []
    for name in sorted(name.removeprefix("AMEND_") for name in given if name.startswith("AMEND_")):
        if name not in known and not name.startswith("TEST_"):
            nearest = "".join(f"; did you mean AMEND_{near}?" for near in difflib.get_close_matches(name, known, n=1))
            found.append(f"AMEND_{name} is no setting of Amend{nearest}")
    return found


def load_or_create_secret(path: Path) -> str:
    """The secret in a file that only its owner can read; a new one if there is none."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        write_private(new, secrets.token_urlsafe(32))
    try:
        os.link(new, path)  # unlike a rename it fails if another process was first
    except FileExistsError:
        pass
    finally:
        new.unlink()
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())  # what is stored under a secret must not outlive it
