"""Keys, and whether the service is ready."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from amend import responses
from amend.errors import UnreachableError
from amend.sansio import Call, Caller, Flow, Pages, list_of, listing, operation, path
from amend.waiting import id_of


class Keys(Caller):
    """What an operator asks."""

    @operation
    def create_key(
        self,
        name: str,
        scopes: Iterable[str],
        models: Iterable[str] | None = None,
        expires: datetime | timedelta | None = None,
    ) -> Flow[responses.IssuedKey]:
        """Issue a key, for all models or some, for good or until it ``expires``. Keep the answer: the service stores a
        hash only.
        """
        reach = None if models is None else list_of(models)
        body: dict[str, Any] = {"name": name, "scopes": list_of(scopes), "models": reach}
        if expires is not None:
            moment = datetime.now(UTC) + expires if isinstance(expires, timedelta) else expires
            body["expires_at"] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
        return self.ask(responses.IssuedKey, "POST", path("keys"), body)

    @listing
    def keys(self) -> Pages[responses.Key]:
        """The keys in use."""
        return Pages(responses.Key, path("keys"))

    @operation
    def revoke_key(self, key: responses.Key | str) -> Flow[None]:
        """Revoke a key: it is refused from then on."""
        yield from self.send(Call("DELETE", path("keys", id_of(key))))

    @operation
    def readiness(self) -> Flow[responses.Readiness]:
        """Whether database, broker, worker and MLflow are there, and which is not. Asked once, not repeated."""
        outcome = yield Call("GET", "/readyz")
        if isinstance(outcome, httpx.Response):
            return self.read(responses.Readiness, outcome)
        raise UnreachableError(f"cannot reach {self.url}: {outcome}")
