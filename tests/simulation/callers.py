"""Callers of the service: they send requests, retry those without a response, and remember what was acknowledged."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from core.encoders.loaded_encoders import FrozenEncoders
from core.errors import AmendError, Unavailable
from core.suppressions import Screen
from service.analyses import endpoints as analyses
from service.context import Context, TtlCache
from service.erasures import endpoints as erasures
from service.erasures.schemas import GivenReason, NewErasure
from service.examples import endpoints as examples
from service.http.auth import Caller
from service.http.request_audit import Auditor
from service.http.unit_of_work import UnitOfWork
from service.jobs import endpoints as jobs
from service.labels import add_labels
from service.models import endpoints as models
from service.models.schemas import NewModel
from service.predictions.version_cache import VersionCache
from service.removals import NewRemoval, remove_examples
from service.versions import endpoints as versions
from service.webhooks import NewWebhook, create_webhook
from tests.simulation.actions import MODELS, PEOPLE, Action
from tests.simulation.baton import Killed
from tests.simulation.engine import StubState
from tests.simulation.world import World, namespace

CALLER = Caller("operator", "credential", frozenset({"admin"}), None)
ATTEMPTS = 6
REJECTED = ("rejected", "purged")
"""States of versions about which a person may have to decide: an erasure may have purged a rejected one."""
POLICY = {
    "adapt": {"after_changes": 1, "every": "1m"},
    "retrain": {"every": None},
    "holdout": 0.0,
    "versions": {"keep": 1, "every": None},
}
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
        self.screen = Screen(settings)
        self.encoders = FrozenEncoders(world.store, settings)
        self.outbox_sender: Any = type("Sender", (), {"wake": lambda self: wake()})()
        self.analysed = TtlCache(0.0)
        self.callers = self.models = self.memories = self.version_keys = self.database_metrics = TtlCache(0.0)


class StubVersions(VersionCache):
    """The versions that a process of the service has in memory."""

    def load(self, number: int, file: str, sha256: str) -> Any:
        state = StubState.from_bytes(self.context.file(file, sha256))

        def predict_means(x: np.ndarray) -> np.ndarray:
            return torch.sigmoid(state.w).numpy() * np.ones((len(x), 1))

        loaded = namespace(number=number, outputs=1, spec=state.spec, predict_means=predict_means, threshold=0.5)
        return namespace(model=loaded, confirmed=0.0)


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
    label: int | None = None
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
        self.people: dict[int, str] = {}
        """Who an example is about, by token."""
        self.bodies: dict[str, dict[str, Any]] = {}
        """Examples as they were sent, by id."""
        self.versions: dict[str, StubVersions] = {}
        """By process of the service."""
        self.outcomes: Counter[str] = Counter()
        """How often each kind of request was acknowledged or refused."""

    def set_up(self) -> None:
        for name in MODELS:
            body = NewModel.model_validate({"name": name, **SPEC, "policy": POLICY})
            models.create_model(body, CALLER, self.context, self.unit(f"model {name}", b""))
        hook = NewWebhook(url="https://receiver.test/", events=None)
        create_webhook(hook, CALLER, self.context, self.unit("webhook", b""))

    def unit(self, key: str, body: bytes) -> UnitOfWork:
        return UnitOfWork(
            Auditor(self.context, f"request {key}", None), key.replace(" ", "-"), hashlib.sha256(body).digest()
        )

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
                self.outcomes[f"{action.kind}: acknowledged"] += 1
                return
            except Unavailable as error:  # whether the request took effect is unknown
                self.world.baton.note(f"{request.kind} unavailable: {error.code}")
            except AmendError as error:
                self.world.baton.note(f"{request.kind} rejected: {error.code}")
                request.rejected = error.code
                self.outcomes[f"{action.kind}: {error.code}"] += 1
                return
            except Killed:  # the service was killed; the caller sees a lost connection
                if not group.serving or self.world.is_over:
                    raise
                group.dead = False
                self.versions.pop(group.name, None)
            finally:
                group.serving = False
            self.world.baton.pause(1.0 + 3.0 * attempt)

    # The requests

    def add(self, action: Action, label: int | None = 0, kind: str = "add") -> Any:
        tokens = tuple(range(self.next_token, self.next_token + action.size))
        self.next_token += action.size
        rows = []
        for i, token in enumerate(tokens):
            number = action.choice + i
            split = "holdout" if number % 4 == 3 else "train"
            row = {"id": f"e{token}", "x": [token], "y": label, "split": split}
            if number % 5 and number % 8 != 7:  # some of the holdout stays, whoever is erased
                row["subject"] = self.people[token] = PEOPLE[number % len(PEOPLE)]
            rows.append(row)
            self.bodies[f"e{token}"] = row
        ids = tuple(f"e{token}" for token in tokens)
        return Request(kind, action.value, tokens, ids), self.sender(action.value, rows)

    def sender(self, model: str, rows: list[dict[str, Any]]) -> Callable[[str], Any]:
        """Sends examples, under the key of a request."""
        body = json.dumps({"examples": rows}).encode()

        def send(key: str) -> Any:
            process = self.world.baton.current.group.name
            versions = self.versions.setdefault(process, StubVersions(self.context))
            return examples.store(model, "application/json", body, CALLER, versions, self.unit(key, body))

        return send

    def add_bad(self, action: Action) -> Any:
        return self.add(action, label=1)

    def add_pending(self, action: Action) -> Any:
        return self.add(action, label=None, kind="add_pending")

    def resend(self, action: Action) -> Any:
        """Send an example again that nobody asked to remove: it is stored once, or stays in quarantine."""
        asked = {id_ for r in self.requests if r.kind in ("remove", "correct", "label") for id_ in r.ids}
        known = [id_ for id_ in self.known_ids(action.value) if id_ not in asked and "subject" not in self.bodies[id_]]
        if not known:
            return None
        id_ = known[action.choice % len(known)]
        return Request("resend", action.value, ids=(id_,)), self.sender(action.value, [self.bodies[id_]])

    def label(self, action: Action) -> Any:
        """Send labels. A second label for the same example is a duplicate or a conflict."""
        known = self.known_ids(action.value, ("add_pending",))
        if not known:
            return None
        start, value = action.choice % len(known), int(action.choice % 3 == 0)
        ids = tuple(known[start : start + action.size])
        body = json.dumps({"labels": [{"id": id_, "y": value} for id_ in ids]}).encode()

        async def read() -> bytes:
            return body

        def send(key: str) -> Any:
            request: Any = namespace(headers={}, body=read)
            return run(add_labels(request, action.value, CALLER, self.context, self.unit(key, body)))

        return Request("label", action.value, ids=ids, label=value), send

    def choose(self, action: Action) -> Any:
        """Ask which examples to label next."""
        body = json.dumps({"kind": "labelling", "top": 3}).encode()
        return Request("choose", action.value), lambda key: analyses.start(
            action.value, body, CALLER, self.unit(key, body)
        )

    def person_of(self, token: int) -> str | None:
        return self.people.get(token)

    def known_ids(self, model: str, kinds: tuple[str, ...] = ("add", "add_pending")) -> list[str]:
        """Ids of examples that were acknowledged, as a caller knows them."""
        known = [r for r in self.requests if r.model == model and r.kind in kinds and r.acknowledged_at is not None]
        return [id_ for request in known for id_ in request.ids]

    def remove(self, action: Action) -> Any:
        known = self.known_ids(action.value)
        if not known:
            return None
        start = action.choice % len(known)
        return self.removal(action.value, tuple(known[start : start + action.size]))

    def removal(self, model: str, ids: tuple[str, ...]) -> Any:
        body = NewRemoval(ids=list(ids))
        return Request("remove", model, ids=ids), lambda key: remove_examples(
            model, body, CALLER, self.context, self.unit(key, repr(ids).encode())
        )

    def remove_bad(self, action: Action) -> Any:
        """Remove examples of the last bad batch, which may be in quarantine."""
        known = [id_ for id_ in self.known_ids(action.value) if self.bodies[id_]["y"] == 1]
        ids = tuple(known[-action.size :])
        return self.removal(action.value, ids) if ids else None

    def remove_pending(self, action: Action) -> Any:
        """Remove examples of the last batch without labels, some of which may have one now."""
        ids = tuple(self.known_ids(action.value, ("add_pending",))[-action.size :])
        return self.removal(action.value, ids) if ids else None

    def correct(self, action: Action) -> Any:
        known = self.known_ids(action.value)
        if not known:
            return None
        id_, token = known[action.choice % len(known)], self.next_token
        self.next_token += 1
        if "subject" in self.bodies[id_]:
            self.people[token] = self.bodies[id_]["subject"]
        body = json.dumps({"examples": [{"id": id_, "x": [token], "y": 0}]}).encode()

        def send(key: str) -> Any:
            def act(model: Any) -> Any:
                batch = examples.read_body(model, self.context, "application/json", body)
                return examples.replace_in(action.value, model, batch, CALLER, self.unit(key, body), len(body))

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
        known += [id_ for r in self.requests if r.kind == "replay" for id_ in r.response.get("erasures", ())]
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

    def choose_version(self, action: Action, states: tuple[str, ...]) -> int | None:
        try:
            page = versions.list_versions(action.value, CALLER, self.context, 100, None)
        except AmendError:
            return None
        numbers = [item.version for item in page.items if not states or item.state in states]
        return numbers[action.choice % len(numbers)] if numbers else None

    def on_version(self, action: Action, states: tuple[str, ...], endpoint: Callable[..., Any]) -> Any:
        number = self.choose_version(action, states)
        if number is None:
            return None
        return Request(action.kind, action.value, target=str(number)), lambda key: endpoint(
            action.value, number, CALLER, self.unit(key, str(number).encode())
        )

    def promote(self, action: Action) -> Any:
        return self.on_version(action, (), versions.promote_version)

    def accept(self, action: Action) -> Any:
        return self.on_version(action, REJECTED, versions.accept_version)

    def discard(self, action: Action) -> Any:
        return self.on_version(action, REJECTED, versions.discard_version)

    def cancel(self, action: Action) -> Any:
        known = [r.response["job"] for r in self.requests if r.response.get("job")]
        if not known:
            return None
        id_ = known[action.choice % len(known)]
        return Request("cancel", "", target=id_), lambda key: jobs.cancel_job(id_, CALLER, self.unit(key, b""))


def run(coroutine: Any) -> Any:
    """The result of a coroutine that does not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine waits")
