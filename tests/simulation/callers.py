"""Callers of the service: they send requests, retry those without a response, and remember what was acknowledged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from core.errors import AmendError, Unavailable
from service.context import Context, TtlCache
from service.erasures import endpoints as erasures
from service.erasures.schemas import GivenReason, NewErasure
from service.examples import endpoints as examples
from service.http.auth import Caller
from service.http.unit_of_work import UnitOfWork
from service.jobs import endpoints as jobs
from service.models import endpoints as models
from service.models.schemas import NewModel
from service.removals import NewRemoval, remove_examples
from service.versions import endpoints as versions
from service.webhooks import NewWebhook, create_webhook
from tests.simulation.actions import MODELS, PEOPLE, Action
from tests.simulation.baton import Killed
from tests.simulation.world import World

CALLER = Caller("operator", "credential", frozenset({"admin"}), None)
ATTEMPTS = 6
POLICY = {"adapt": {"after_changes": 1, "every": "1m"}, "retrain": {"every": None}, "holdout": 0.0}
SPEC = {
    "input": {"kind": "vector", "dim": 1},
    "target": {"kind": "binary"},
    "architecture": {"kind": "linear"},
    "regularizer": {"kind": "l2", "delta": 1.0},
}


class ServiceContext(Context):
    """The service's context in a simulated world."""

    def __init__(self, settings: Any, database: Any, world: World, wake: Callable[[], None]) -> None:
        self.settings, self.stopping, self.database, self.store = settings, False, database, world.store
        self.outbox_sender: Any = type("Sender", (), {"wake": lambda self: wake()})()
        self.callers = self.models = self.memories = self.version_keys = self.database_metrics = TtlCache(0.0)


@dataclass
class Request:
    """A request and its outcome."""

    kind: str
    model: str
    tokens: tuple[int, ...] = ()
    """Of the examples that it adds."""
    ids: tuple[str, ...] = ()
    """Of the examples that it removes or corrects."""
    subject: str = ""
    target: str = ""
    """Id of the erasure or number of the version that it is about."""
    sent_at: float = 0.0
    acknowledged_at: float | None = None
    response: dict[str, Any] = field(default_factory=dict)
    rejected: str = ""
    """Code of the error in a definite response."""

    @property
    def may_have_happened(self) -> bool:
        return self.acknowledged_at is not None or not self.rejected


class Callers:
    """All callers together: ids and tokens go on from request to request."""

    def __init__(self, context: Context, world: World) -> None:
        self.context, self.world = context, world
        self.requests: list[Request] = []
        self.next_token = 1
        self.subject_of: dict[int, str] = {}
        """By token."""

    def set_up(self) -> None:
        for name in MODELS:
            body = NewModel.model_validate({"name": name, **SPEC, "policy": POLICY})
            models.create_model(body, CALLER, self.context, self.unit(f"model {name}", b""))
        hook = NewWebhook(url="https://receiver.test/", events=None)
        create_webhook(hook, CALLER, self.context, self.unit("webhook", b""))

    def unit(self, key: str, body: bytes) -> UnitOfWork:
        return UnitOfWork(self.context, f"request {key}", key.replace(" ", "-"), hashlib.sha256(body).digest())

    def perform(self, action: Action) -> None:
        """Carry out an action of a caller."""
        prepared = getattr(self, action.kind)(action)
        if prepared is None:
            return
        request, send = prepared
        request.sent_at = self.world.baton.elapsed
        self.requests.append(request)
        key = f"key-{len(self.requests)}"
        for attempt in range(ATTEMPTS):
            group = self.world.baton.current.group
            group.serving = group.name != "operator"
            try:
                response = send(key)
                body = response.body if hasattr(response, "body") else response.model_dump_json()
                request.response, request.acknowledged_at = json.loads(body), self.world.baton.elapsed
                self.world.baton.note(f"{request.kind} acknowledged: {request.ids or request.tokens or request.target}")
                return
            except Unavailable as error:
                self.world.baton.note(f"{request.kind} unavailable: {error.code}")
                if error.code == "receipts_behind" and attempt + 1 == ATTEMPTS:
                    request.rejected = error.code
            except AmendError as error:
                self.world.baton.note(f"{request.kind} rejected: {error.code}")
                request.rejected = error.code
                return
            except Killed:  # the service was killed; the caller sees a lost connection
                if not group.serving or self.world.is_over:
                    raise
                group.dead = False
            finally:
                group.serving = False
            self.world.baton.pause(1.0 + 3.0 * attempt)

    # The requests

    def add(self, action: Action, bad: bool = False) -> Any:
        tokens = tuple(range(self.next_token, self.next_token + action.size))
        self.next_token += action.size
        rows = []
        for i, token in enumerate(tokens):
            person = PEOPLE[(action.choice + i) % len(PEOPLE)] if (action.choice + i) % 3 else None
            rows.append({"id": f"e{token}", "x": [token], "y": int(bad), "split": "train"})
            if person:
                rows[-1]["subject"] = person
                self.subject_of[token] = person
        body = json.dumps({"examples": rows}).encode()
        ids = tuple(f"e{token}" for token in tokens)
        return Request("add", action.value, tokens, ids), lambda key: examples.store(
            action.value, "application/json", body, CALLER, self.context, self.unit(key, body)
        )

    def add_bad(self, action: Action) -> Any:
        return self.add(action, bad=True)

    def ids_in_force(self, model: str) -> list[str]:
        """Ids of examples that were acknowledged, as a caller knows them."""
        known = [r for r in self.requests if r.model == model and r.kind == "add" and r.acknowledged_at is not None]
        return [id_ for request in known for id_ in request.ids]

    def remove(self, action: Action) -> Any:
        known = self.ids_in_force(action.value)
        if not known:
            return None
        start = action.choice % len(known)
        ids = tuple(known[start : start + action.size])
        body = NewRemoval(ids=list(ids))
        return Request("remove", action.value, ids=ids), lambda key: remove_examples(
            action.value, body, CALLER, self.context, self.unit(key, repr(ids).encode())
        )

    def correct(self, action: Action) -> Any:
        known = self.ids_in_force(action.value)
        if not known:
            return None
        id_, token = known[action.choice % len(known)], self.next_token
        self.next_token += 1
        body = json.dumps({"examples": [{"id": id_, "x": [token], "y": 0}]}).encode()

        def send(key: str) -> Any:
            def act(model: Any) -> Any:
                batch = examples.read_body(model, self.context, "application/json", body)
                return examples.replace_in(action.value, model, batch, CALLER, self.unit(key, body))

            return examples.with_cached_model(action.value, CALLER, self.context, act)

        return Request("correct", action.value, (token,), (id_,)), send

    def erase(self, action: Action, hold: bool = False) -> Any:
        subject = PEOPLE[action.choice % len(PEOPLE)]
        body = NewErasure(subject=subject, hold=hold)
        return Request("erase", "", subject=subject), lambda key: erasures.request_erasure(
            body, CALLER, self.context, self.unit(key, f"{subject} {hold}".encode())
        )

    def erase_held(self, action: Action) -> Any:
        return self.erase(action, hold=True)

    def decide(self, action: Action, decision: Callable[..., Any], **arguments: Any) -> Any:
        known = [r.response["id"] for r in self.requests if r.kind == "erase" and r.response]
        if not known:
            return None
        id_ = known[action.choice % len(known)]
        return Request(action.kind, "", target=id_), lambda key: decision(
            id_, caller=CALLER, write=self.unit(key, id_.encode()), **arguments
        )

    def approve(self, action: Action) -> Any:
        return self.decide(action, erasures.approve_erasure)

    def refuse(self, action: Action) -> Any:
        return self.decide(action, erasures.refuse_erasure, body=GivenReason(reason="unfounded"))

    def extend(self, action: Action) -> Any:
        return self.decide(action, erasures.extend_erasure, body=GivenReason(reason="complex"))

    def retry(self, action: Action) -> Any:
        return Request("retry", ""), lambda key: erasures.retry_failed_erasures(CALLER, self.unit(key, b""))

    def replay(self, action: Action) -> Any:
        return Request("replay", ""), lambda key: erasures.replay_erasures(CALLER, self.context, self.unit(key, b""))

    def adapt(self, action: Action) -> Any:
        return Request("adapt", action.value), lambda key: jobs.adapt(action.value, CALLER, self.unit(key, b""))

    def retrain(self, action: Action) -> Any:
        return Request("retrain", action.value), lambda key: jobs.retrain(action.value, CALLER, self.unit(key, b""))

    def resume(self, action: Action) -> Any:
        return Request("resume", action.value), lambda key: models.resume_model(
            action.value, CALLER, self.unit(key, b"")
        )

    def choose_version(self, action: Action, state: str | None) -> int | None:
        try:
            page = versions.list_versions(action.value, CALLER, self.context, 100, None)
        except AmendError:
            return None
        numbers = [item.version for item in page.items if state is None or item.state == state]
        return numbers[action.choice % len(numbers)] if numbers else None

    def on_version(self, action: Action, state: str | None, endpoint: Callable[..., Any]) -> Any:
        number = self.choose_version(action, state)
        if number is None:
            return None
        return Request(action.kind, action.value, target=str(number)), lambda key: endpoint(
            action.value, number, CALLER, self.unit(key, str(number).encode())
        )

    def promote(self, action: Action) -> Any:
        return self.on_version(action, None, versions.promote_version)

    def accept(self, action: Action) -> Any:
        return self.on_version(action, "rejected", versions.accept_version)

    def discard(self, action: Action) -> Any:
        return self.on_version(action, "rejected", versions.discard_version)

    def cancel(self, action: Action) -> Any:
        known = [r.response["job"] for r in self.requests if r.response.get("job")]
        if not known:
            return None
        id_ = known[action.choice % len(known)]
        return Request("cancel", "", target=id_), lambda key: jobs.cancel_job(id_, CALLER, self.unit(key, b""))
