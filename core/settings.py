"""All settings: environment variables AMEND_<NAME>, or files amend_<name> in /run/secrets."""

import difflib
import hashlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.errors import Invalid
from core.roles import parse_roles

MAX_SOCKET_PATH_BYTES = 100
"""Length of a Unix socket's path that every system accepts."""
SECRETS_FOLDER = Path(os.environ.get("AMEND_SECRETS", "/run/secrets"))
"""Folder of secrets that are given as files. Container engines use /run/secrets."""
DAYS = "^[1-9][0-9]{0,4}d$"
OTHER_VARIABLES = ("SECRETS", "URL", "KEY", "MLFLOW_PORT")
"""Variables AMEND_... that are not fields of Settings: the folder of secrets, and those of the `amend` command."""


class Settings(BaseSettings):
    """The settings of an installation. With the defaults, everything runs embedded in one folder."""

    model_config = SettingsConfigDict(
        env_prefix="AMEND_",
        secrets_dir=SECRETS_FOLDER if SECRETS_FOLDER.is_dir() else None,
        extra="ignore",
        frozen=True,
    )

    home: Path = Field(Path("~/.amend"), description="Folder of the embedded database, files and keys.")
    database_url: str = Field("", description="SQLAlchemy URL. Empty: SQLite in the home folder.")
    database_password: SecretStr = Field(
        SecretStr(""), description="Password of the database, if its URL contains none."
    )
    artifacts_url: str = Field(
        "", description="fsspec URL or folder of the version files. Empty: a folder in the home folder."
    )
    broker_url: str = Field(
        "",
        description="URL of the Redis or Valkey server that sends jobs to workers. Empty: a socket in AMEND_HOME.",
    )
    mlflow_url: str = Field("", description="URL of the MLflow tracking server.")
    mlflow_password: SecretStr = Field(
        SecretStr(""),
        description="Password of MLflow's user `amend`. Empty: use MLFLOW_TRACKING_USERNAME and _PASSWORD.",
    )
    mlflow_pages_url: str = Field("", description="URL of MLflow's pages for browsers, if it differs from mlflow_url.")
    secret_key: SecretStr = Field(
        SecretStr(""), description="Key of the subject hashes. Empty: a file in the home folder."
    )
    signing_key_file: str = Field(
        "", description="Ed25519 key (PEM) that signs the register of erasures. Empty: a file in the home folder."
    )
    signing_key_previous_file: str = Field(
        "", description="Key that `signing_key_file` replaces, or `lost` if it no longer exists. Empty: none."
    )
    admin_key: SecretStr = Field(SecretStr(""), description="First admin key. Empty: generated and written to a file.")

    oidc_issuer: str = Field(
        "", description="URL of the OpenID Connect provider at which people sign in. Empty: API keys only."
    )
    oidc_client_id: str = Field("", description="Id of Amend as a client of the provider.")
    oidc_client_secret: SecretStr = Field(SecretStr(""), description="Secret of the client. Empty: a public client.")
    oidc_audience: str = Field(
        "", description="Audience of access tokens that the REST API accepts. Empty: only the client id."
    )
    oidc_groups: str = Field(
        "groups", description="Claim that lists a person's groups; dots for nested claims, such as realm_access.roles."
    )
    oidc_roles: str = Field(
        "",
        description="Comma-separated GROUP=ROLE, with the roles viewer, data_scientist, privacy_officer, approver and"
        " admin. People without a role are refused.",
    )
    oidc_scopes: str = Field("openid profile email groups", description="Scopes that Amend asks the provider for.")
    public_url: str = Field(
        "", description="URL of this service for browsers, if a proxy changes it. Empty: taken from the request."
    )

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    processes: int = Field(
        1, ge=1, le=256, description="Number of API processes, with SQLite as well as with PostgreSQL."
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")

    pool_size: int = Field(
        10, ge=1, description="Database connections of one process, and the number of its concurrent writers."
    )
    pool_overflow: int = Field(10, ge=1, description="Additional connections under load.")
    database_timeout: float = Field(
        30.0, gt=0, description="Seconds to wait for a database connection or lock before returning 503."
    )

    max_body_bytes: int = Field(64 * 2**20, ge=1024)
    max_batch: int = Field(100_000, ge=1, description="Maximum number of examples, ids or inputs in one request.")
    max_parameters: int = Field(50_000_000, ge=1, description="Maximum number of weights of a model.")
    encoder_max_bytes: int = Field(512 * 2**20, ge=1024, description="Size limit of an uploaded encoder, in bytes.")
    encoder_memory: int = Field(
        4 * 2**30, ge=2**30, description="Address space of the process that runs an ONNX encoder, in bytes."
    )
    encoder_timeout: float = Field(
        30.0, gt=0, description="Seconds that an ONNX encoder may take to load, or to encode up to 256 inputs."
    )
    max_wait: float = Field(60.0, ge=0, description="Maximum duration of a long poll, in seconds.")
    max_connections: int = Field(
        1000, ge=1, description="Open connections of one process; further connections get a 503."
    )
    client_timeout: float = Field(
        20.0, gt=0, description="Seconds to wait for the headers of a request or for more of its body."
    )

    rate_limit: float = Field(0.0, ge=0, description="Requests per second that a key may send. 0: unlimited.")
    cors_origins: str = Field("", description="Comma-separated origins that browsers may call the API from; * for all.")

    cache_seconds: float = Field(
        1.0, ge=0, description="Seconds for which a process may use a key or champion that another process has changed."
    )
    idempotency_hours: float = Field(
        24.0, gt=0, description="Hours for which responses are kept for repeated requests."
    )

    caseless_subjects: bool = Field(
        False,
        description="Ignore case and width (NFKC) when comparing subjects. Set it before the first subject is stored.",
    )
    private_webhooks: bool = Field(False, description="Allow webhooks to private and loopback addresses.")
    erasure_hold: bool = Field(False, description="Hold erasure requests for approval unless a request says otherwise.")
    erasure_approval: str = Field(
        "",
        pattern="^(second)?$",
        description="second: hold every erasure request until somebody approves it with a different key than it was"
        " filed with. Empty: `erasure_hold` decides.",
    )
    controller: str = Field(
        "", description="Name and address of the controller on letters to people; semicolons separate the lines."
    )
    controller_contact: str = Field(
        "",
        description="Contact details of the controller or its data protection officer; semicolons separate the lines.",
    )
    supervisory_authority: str = Field(
        "", description="Authority that people can complain to; semicolons separate the lines."
    )
    privacy_notice_url: str = Field(
        "", description="URL of the privacy notice that access reports refer to for purposes and legal bases."
    )
    returning_subjects: str = Field(
        "quarantine",
        pattern="^(accept|quarantine|refuse)$",
        description="What happens to new examples of a person whose data was erased.",
    )
    returning_retention: str = Field(
        "365d",
        pattern=DAYS,
        description="Time after an erasure for which new examples of the person are recognised, in days.",
    )
    audit_retention: str = Field(
        "730d", pattern=DAYS, description="Time for which entries of the audit log are kept, in days."
    )
    backup_retention: str = Field(
        "35d",
        pattern=DAYS,
        description="Age of the oldest backup that may be restored, in days. For as long, the store keeps a record of"
        " what a restore must not undo.",
    )
    trusted_proxies: str = Field(
        "",
        description="Comma-separated addresses or networks of proxies whose X-Forwarded-For header gives the address of"
        " the client in the audit log. Empty: the address of the connection.",
    )

    register_retention: str = Field(
        "1095d",
        pattern="^([1-9][0-9]{0,4}d)?$",
        description="Days for which the register of erasures keeps its records. Empty: for ever.",
    )
    tsa_url: str = Field(
        "", description="URL of an RFC 3161 authority that time-stamps the heads of the register. Empty: none."
    )

    queues: str = Field("", description="Comma-separated queues that a worker serves. Empty: all.")
    worker_processes: int = Field(2, ge=1, le=256, description="Concurrent jobs of one worker; use one per GPU.")
    device: str = Field("auto", pattern="^(auto|cpu|cuda)$", description="auto: the GPU if there is one.")
    ray_address: str = Field(
        "", description="HOST:PORT of a Ray cluster for long computations. Empty: compute in the worker."
    )
    ray_min_seconds: float = Field(
        10.0, ge=0, description="Compute passes and epochs that take longer than this on Ray."
    )
    ray_processes: int = Field(
        0, ge=0, le=64, description="Processes that train one network on Ray. 0: one per GPU of the cluster."
    )
    ray_timeout: float = Field(
        60.0, ge=0, description="Seconds for which a job waits for Ray before it computes in the worker."
    )
    lease_seconds: float = Field(
        30.0, gt=1, description="Seconds without a heartbeat after which another worker takes over a job."
    )
    max_attempts: int = Field(3, ge=1, le=100, description="Attempts after which a job fails.")
    retry_seconds: float = Field(5.0, ge=0, description="Seconds before the next attempt.")
    shutdown_timeout: float = Field(
        8.0, ge=0, description="Seconds after which a worker that shuts down returns its jobs to the queue."
    )
    resend_seconds: float = Field(
        30.0, gt=0, description="Seconds after which a job that no worker has taken is sent again."
    )
    tick_seconds: float = Field(5.0, gt=0, description="Interval of the scheduler, in seconds.")
    worker_timeout: float = Field(
        30.0, gt=0, description="Seconds without a heartbeat after which `/readyz` reports a worker as down."
    )

    @field_validator("broker_url")
    @classmethod
    def speaks_redis(cls, url: str) -> str:
        if url and not url.startswith(("redis://", "rediss://", "redis+socket://")):
            raise ValueError("expected redis://HOST:PORT/NUMBER, rediss://... or redis+socket:///PATH")
        return url

    @field_validator("oidc_issuer", "public_url")
    @classmethod
    def is_confidential(cls, url: str) -> str:
        if url and not re.match(r"https://[^/\s]|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)", url):
            raise ValueError("expected https://HOST (http only for this machine)")
        return url.rstrip("/")

    @field_validator("oidc_roles")
    @classmethod
    def are_roles(cls, text: str) -> str:
        parse_roles(text)
        return text

    @model_validator(mode="after")
    def has_client(self) -> Self:
        missing = [name for name in ("oidc_client_id", "oidc_roles") if self.oidc_issuer and not getattr(self, name)]
        if missing:
            raise ValueError(" and ".join(f"AMEND_{name.upper()}" for name in missing) + " must be set with an issuer")
        return self

    @field_validator("cors_origins")
    @classmethod
    def are_origins(cls, origins: str) -> str:
        if any(not re.fullmatch(r"\*|https?://[^/\s,*]+", origin) for origin in split_list(origins)):
            raise ValueError("expected a comma-separated list of https://HOST or https://HOST:PORT, or *")
        return origins

    @cached_property
    def folder(self) -> Path:
        """The home folder, created on first use, readable only by its owner."""
        folder = self.home.expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    @property
    def database(self) -> str:
        # the usual URLs without a driver mean psycopg
        url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", self.database_url)
        return url or f"sqlite:///{quote(str(self.folder / 'amend.db'))}"

    @property
    def artifacts(self) -> str:
        return self.artifacts_url or str(self.folder / "artifacts")

    @property
    def record_lifetime(self) -> timedelta | None:
        """How long records of the register are kept; None: for ever."""
        return timedelta(days=int(self.register_retention[:-1])) if self.register_retention else None

    @property
    def queue_names(self) -> list[str]:
        """The queues that a worker serves; an empty list means all."""
        return split_list(self.queues)

    @property
    def mlflow_pages(self) -> str:
        return (self.mlflow_pages_url or self.mlflow_url).rstrip("/")

    @property
    def broker(self) -> str:
        """The broker's URL; the default is the socket in the home folder that `python -m worker.broker` serves."""
        return self.broker_url or f"redis+socket://{self.broker_socket}"

    @property
    def broker_socket(self) -> Path:
        path = self.folder / "broker" / "valkey.sock"
        # Redis clients differ in how they parse special characters in a URL
        if len(str(path)) > MAX_SOCKET_PATH_BYTES or quote(str(path)) != str(path):
            name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
            paths = (
                Path(folder) / f"amend-{os.getuid()}-{name}" / "valkey.sock"
                for folder in (tempfile.gettempdir(), "/tmp")
            )
            return next((p for p in paths if len(str(p)) <= MAX_SOCKET_PATH_BYTES), path)
        return path

    @cached_property
    def secret(self) -> bytes:
        """The key of all keyed hashes. Without it no stored subject can be found."""
        return self.secret_key.get_secret_value().encode() or load_or_create_secret(self.folder / "secret.key").encode()


def parse_days(text: str) -> timedelta:
    """
    >>> parse_days("30d")
    datetime.timedelta(days=30)
    """
    return timedelta(days=int(text.removesuffix("d")))


def split_lines(text: str) -> list[str]:
    """Split a setting of several lines.

    >>> split_lines("Example Ltd; 1 Main Street")
    ['Example Ltd', '1 Main Street']
    """
    return [line.strip() for line in text.split(";") if line.strip()]


def split_list(text: str) -> list[str]:
    """Split a comma-separated setting.

    >>> split_list("a, b,")
    ['a', 'b']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def from_environment() -> Settings:
    """Read the settings of this process; raises Invalid with a message for operators."""
    warn_of_unknown()
    try:
        settings = Settings()
        _ = settings.folder
        return settings
    except ValidationError as error:
        problems = [f"AMEND_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
        raise Invalid("settings_invalid", "; ".join(problems)) from None
    except OSError as error:
        message = f"AMEND_HOME: cannot use {error.filename} ({error.strerror})."
        raise Invalid("settings_invalid", message) from None


@lru_cache(maxsize=1)
def warn_of_unknown() -> None:
    """Print a warning for each variable AMEND_... that is not a setting, such as a misspelt one."""
    for problem in describe_unknown(os.environ):
        print(problem, file=sys.stderr)


def describe_unknown(variables: Iterable[str]) -> list[str]:
    """A warning for each variable AMEND_... that is not a setting.

    >>> describe_unknown(["AMEND_PORT", "AMEND_DATABSE_URL", "HOME"])
    ['Unknown setting AMEND_DATABSE_URL. Did you mean AMEND_DATABASE_URL?']
    """
    known = [name.upper() for name in Settings.model_fields] + list(OTHER_VARIABLES)
    warnings = []
    for name in sorted(name.removeprefix("AMEND_") for name in variables if name.startswith("AMEND_")):
        if name not in known and not name.startswith("TEST_"):
            hint = "".join(f" Did you mean AMEND_{near}?" for near in difflib.get_close_matches(name, known, n=1))
            warnings.append(f"Unknown setting AMEND_{name}.{hint}")
    return warnings


def load_or_create_secret(path: Path, create: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> str:
    """Read the secret in a file that only its owner can read; creates it if the file does not exist."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        write_private(new, create().strip())
    try:
        os.link(new, path)  # unlike a rename, this fails if another process was first
    except FileExistsError:
        pass
    finally:
        new.unlink()
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Write a file that is never readable by anyone but its owner."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())  # data that depends on a secret must not survive a crash that the secret does not
