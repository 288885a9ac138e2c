"""An OpenID Connect provider on this machine: Canaille, with people and groups in memory.

It runs as a process of its own, `python -m tests.identity_provider PORT URL`, with the URL of the service that people
sign in to. `make setup` installs it in a folder of its own, because it brings another package named `tests`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest

from tests.servers import free_port

CLIENT_ID, CLIENT_SECRET, PASSWORD = "amend", "a secret of the client", "correct horse battery staple"
PROJECT = Path(__file__).parents[1]
PACKAGES = PROJECT / ".venv" / "identity-provider"
GROUPS = {
    "ada": ("Ada Lovelace", ["ml-team"]),
    "olga": ("Olga Officer", ["privacy"]),
    "paul": ("Paul Approver", ["privacy-board"]),
    "vera": ("Vera Viewer", ["everybody"]),
    "root": ("Rita Root", ["operators"]),
    "nemo": ("Nemo Nobody", ["canteen"]),
}
ROLES = "ml-team=data_scientist, privacy=privacy_officer, privacy-board=approver, everybody=viewer, operators=admin"


@dataclass(frozen=True)
class Provider:
    """A provider that is running."""

    url: str

    def settings(self) -> dict[str, str]:
        """The environment of a service whose people sign in here."""
        return {
            "AMEND_OIDC_ISSUER": self.url,
            "AMEND_OIDC_CLIENT_ID": CLIENT_ID,
            "AMEND_OIDC_CLIENT_SECRET": CLIENT_SECRET,
            "AMEND_OIDC_ROLES": ROLES,
        }


@contextmanager
def running(service_url: str) -> Iterator[Provider]:
    """Start a provider that knows the service, and stop it at the end."""
    if not PACKAGES.is_dir():
        pytest.skip(f"NOT RUN: there is no identity provider in {PACKAGES}. Run `make setup`.")
    port = free_port()
    command = [sys.executable, "-m", "tests.identity_provider", str(port), service_url]
    path = os.pathsep.join([str(PROJECT), str(PACKAGES)])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "AUTHLIB_INSECURE_TRANSPORT": "1"})
    provider = Provider(f"http://localhost:{port}")
    try:
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{provider.url}/.well-known/openid-configuration").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None, "the provider ended"
                assert time.monotonic() < end, "the provider does not answer"
                time.sleep(0.1)
        yield provider
    finally:
        process.terminate()
        process.wait(10)


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def serve(port: int, service_url: str) -> None:
    from canaille import create_app  # noqa: PLC0415 - only this process has it loaded
    from canaille.app import models  # noqa: PLC0415
    from canaille.backends import Backend  # noqa: PLC0415
    from joserfc.jwk import JWKRegistry  # noqa: PLC0415

    logging.disable(logging.WARNING)
    key = JWKRegistry.generate_key("RSA", 2048)
    key.ensure_kid()
    app = create_app(
        config={
            "ENV_FILE": None,
            "SECRET_KEY": os.urandom(16).hex(),
            "PREFERRED_URL_SCHEME": "http",
            "SERVER_NAME": f"localhost:{port}",
            "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "ACL": {"DEFAULT": {"PERMISSIONS": ["use_oidc"]}}},
            "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)]},
        }
    )
    with app.app_context():
        backend = Backend.instance
        members: dict[str, list[object]] = {}
        for name, (full_name, groups) in GROUPS.items():
            person = models.User(
                user_name=name,
                formatted_name=full_name,
                family_name=full_name.split()[1],
                emails=[f"{name}@example.org"],
                password=PASSWORD,
            )
            backend.save(person)
            for group in groups:
                members.setdefault(group, []).append(person)
        for group, people in members.items():
            backend.save(models.Group(display_name=group, members=people))
        client = models.Client(
            client_id=CLIENT_ID,
            client_secret=CLIENT_SECRET,
            client_name="Amend",
            client_uri=service_url,
            redirect_uris=[f"{service_url}/sign-in/oidc/callback"],
            grant_types=["authorization_code"],
            response_types=["code"],
            scope=["openid", "profile", "email", "groups"],
            token_endpoint_auth_method="client_secret_basic",
        )
        backend.save(client)
        client.audience = [client]
        backend.save(client)
    make_server("localhost", port, app, handler_class=QuietHandler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
