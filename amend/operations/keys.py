"""API keys, and the readiness of the service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from amend import responses
from amend.client_methods import listing, operation
from amend.errors import UnreachableError
from amend.requests import Call, Caller, Flow, Pages, list_of, path
from amend.waiting import id_of


class Keys(Caller):
    @operation
    def create_key(
        self,
        name: str,
        scopes: Iterable[str],
        models: Iterable[str] | None = None,
        expires: datetime | timedelta | None = None,
        quota: Mapping[str, float] | None = None,
    ) -> Flow[responses.IssuedKey]:
        """Create an API key for all or some models, with an optional expiry and quota, such as
        `{"rows_per_day": 10_000, "models": 3}`. Store the returned key: the service keeps only a hash.
        """
        reach = None if models is None else list_of(models)
        body: dict[str, Any] = {"name": name, "scopes": list_of(scopes), "models": reach}
        if quota is not None:
            body["quota"] = dict(quota)
        if expires is not None:
            moment = datetime.now(UTC) + expires if isinstance(expires, timedelta) else expires
            body["expires_at"] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
        return self.ask(responses.IssuedKey, "POST", path("keys"), body)

    @listing
    def keys(self) -> Pages[responses.Key]:
        """Iterate over the API keys."""
        return Pages(responses.Key, path("keys"))

    @operation
    def revoke_key(self, key: responses.Key | str) -> Flow[None]:
        """Revoke an API key with immediate effect."""
        yield from self.send(Call("DELETE", path("keys", id_of(key))))

    @operation
    def readiness(self) -> Flow[responses.Readiness]:
        """Whether database, broker, worker and MLflow are available. Sent once, without retries."""
        outcome = yield Call("GET", "/readyz")
        if isinstance(outcome, httpx.Response):
            return self.read(responses.Readiness, outcome)
        raise UnreachableError(f"Cannot reach {self.url}: {outcome}.")
