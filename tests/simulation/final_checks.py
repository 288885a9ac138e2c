"""Properties that must hold once nothing is left to do: every acknowledged request has taken effect exactly once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.simulation.callers import Request
from tests.simulation.checker import Checker
from tests.simulation.observed_state import StoredExample, Violation

OUTCOMES = {
    "versions": "versions",
    "versions rejected": "versions WHERE state = 'rejected'",
    "versions purged": "versions WHERE state = 'purged'",
    "windows": "quality_windows",
    "drift reports": "drift_reports WHERE report IS NOT NULL",
    "receipts": "receipts",
    "examples in quarantine": "examples WHERE quarantine IS NOT NULL",
}
ADDITIONS = ("add", "add_pending", "label", "correct")


class FinalChecks:
    def __init__(self, checker: Checker) -> None:
        self.checker, self.state, self.world = checker, checker.state, checker.world
        self.requests, self.people = checker.callers.requests, checker.callers.people
        self.restored = checker.restored_at is not None
        self.lenient = self.restored and checker.unrecorded
        """Whether a restore may have undone changes that concern people."""
        sent = [request for request in self.requests if request.may_have_happened]
        self.removable = {id_ for r in sent if r.kind in ("remove", "correct") for id_ in r.ids}
        self.erasable = {r.subject for r in sent if r.kind == "erase"}
        self.discards = any(r.kind == "discard" for r in sent)

    def run(self) -> None:
        self.checker.observe()
        self.check_gaps()
        self.check_requests()
        self.check_erasure_requests()
        self.checker.check_gone(self.checker.erased, "erased data left")
        rows = [row for row in self.state.examples.values() if row.x]
        tokens = {row.token for row in [*rows, *self.state.pending.values()]}
        if bad := tokens & self.checker.erased:
            raise Violation("erased data left", f"The database still has {sorted(bad)}.")
        self.check_champions()
        self.check_files()
        self.check_mlflow()
        self.check_webhooks()
        self.count_outcomes()

    def count_outcomes(self) -> None:
        """Take note of what happened, so that a protocol which no history reaches is noticed."""
        for name, query in OUTCOMES.items():
            [(count,)] = self.state.execute(f"SELECT count(*) FROM {query}")
            self.checker.callers.outcomes[name] += count

    def check_gaps(self) -> None:
        for model in self.state.rows("SELECT id, head FROM models"):
            expected = 1
            query = "SELECT first, last FROM changes WHERE model_id = ? ORDER BY last"
            for first, last in self.state.execute(query, model["id"]):
                if first != expected or last < first:
                    raise Violation("gap", f"Model {model['id']}: {first}-{last} instead of {expected}.")
                expected = last + 1
            if expected != model["head"] + 1:
                raise Violation("gap", f"Model {model['id']}: the head is {model['head']}, not {expected - 1}.")

    def is_done(self, request: Request) -> bool:
        """Whether a request was acknowledged, and no restore has undone it."""
        return request.acknowledged_at is not None and not self.checker.is_lost(request.acknowledged_at)

    def check_requests(self) -> None:
        in_force: dict[int, list[StoredExample]] = {}
        for row in self.state.examples.values():
            if row.removed is None:
                in_force.setdefault(row.token, []).append(row)
        if twice := [token for token, found in in_force.items() if len(found) > 1]:
            raise Violation("applied twice", f"The examples {twice} are in force twice.")
        self.in_force = {token: found[0] for token, found in in_force.items()}
        self.quarantined = {row.token for row in self.state.examples.values() if row.quarantine is not None}
        self.waiting = {row.token for row in self.state.pending.values()}
        for request in self.requests:
            if self.is_done(request):
                if request.kind in ADDITIONS:
                    self.check_added(request)
                if request.kind == "remove":
                    self.check_removed(request)
                if request.kind in ("accept", "discard"):
                    self.check_decided(request)
            elif request.acknowledged_at is not None and not self.lenient:
                if request.kind == "remove":
                    self.check_removed(request)
                if request.kind == "correct":
                    self.check_not_outdated(request)

    def check_added(self, request: Request) -> None:
        """Examples, labels and corrections are there, unless another request took them away."""
        unknown = request.response.get("unknown", ())
        for i, id_ in enumerate(request.ids):
            token = request.tokens[i] if request.tokens else int(id_[1:])
            row = self.in_force.get(token)
            there = row is not None or token in self.quarantined
            if request.kind == "add_pending":
                there = there or token in self.waiting
            gone = self.replaced_later(request) if request.kind == "correct" else id_ in self.removable
            excused = gone or self.people.get(token) in self.erasable or self.discards or id_ in unknown
            if not there and not excused:
                raise Violation("request lost", f"The {request.kind} of {id_} ({token}) was acknowledged, but is gone.")
            if row is not None and request.label not in (None, row.y) and id_ not in unknown:
                raise Violation("label lost", f"{id_} was labelled {request.label}, but has {row.y}.")

    def replaced_later(self, request: Request) -> bool:
        later = ("remove", "correct")
        others = [r for r in self.requests if r is not request and r.kind in later and r.may_have_happened]
        return any(set(request.ids).intersection(r.ids) for r in others)

    def check_removed(self, request: Request) -> None:
        sent_again = {id_ for r in self.requests if r.kind == "resend" for id_ in r.ids}
        [(model,)] = self.state.execute("SELECT id FROM models WHERE name = ?", request.model)
        names = {row.id for row in self.in_force.values() if row.model == model}
        came_back = names.intersection(request.ids) - set(request.response["unknown"]) - sent_again
        if came_back and not self.lenient:
            raise Violation("removal lost", f"{sorted(came_back)} are in force again.")

    def check_not_outdated(self, request: Request) -> None:
        """After a restore, a corrected example does not have its old content again."""
        earlier = [
            r for r in self.requests[: self.requests.index(request)] if r.kind == "correct" and r.ids == request.ids
        ]
        old = {int(request.ids[0][1:]), *(token for r in earlier for token in r.tokens)}
        if back := [row for row in self.in_force.values() if row.id == request.ids[0] and row.token in old]:
            raise Violation("correction lost", f"{request.ids} was corrected, but has {back[0].token} again.")

    def check_decided(self, request: Request) -> None:
        """After a decision, no example is left in quarantine, except those of people who asked for erasure."""
        rows = self.state.rows(
            "SELECT e.position, e.model_id FROM examples e JOIN models m ON m.id = e.model_id"
            " WHERE m.name = ? AND e.quarantine = ?",
            *(request.model, int(request.target)),
        )
        tokens = [self.state.content[row["model_id"], row["position"]] for row in rows]
        left = [token for token in tokens if self.people.get(token) not in self.erasable]
        if left and not self.restored:
            raise Violation("decision lost", f"Version {request.target}: {request.kind}, but {left} are in quarantine.")

    def check_erasure_requests(self) -> None:
        rows = {row["id"]: row for row in self.state.rows("SELECT id, state, received_at, receipt FROM erasures")}
        for request in self.requests:
            if request.kind == "erase" and request.response and not self.lenient:
                self.check_erasure_request(request, rows.get(request.response["id"]))
        known = {number for (number,) in self.state.execute("SELECT number FROM receipts")}
        for row in rows.values():
            if row["state"] == "completed" and row["receipt"] not in known:
                raise Violation("receipt lost", f"The erasure {row['id']} is completed, but has no receipt.")
            refusals = [r for r in self.requests if r.kind == "refuse" and r.target == row["id"] and r.response]
            if refusals and row["state"] != "refused" and not self.lenient:
                raise Violation("refusal lost", f"The erasure {row['id']} was refused, but is {row['state']}.")

    def check_erasure_request(self, request: Request, row: dict[str, Any] | None) -> None:
        id_ = request.response["id"]
        if row is None:
            raise Violation("request lost", f"The erasure {id_} does not exist.")
        if row["state"] not in ("completed", "refused", "held", "unmatched"):
            raise Violation("erasure not completed", f"The erasure {id_} is {row['state']}.")
        told = request.response["received_at"].removesuffix("Z").replace("T", " ")
        told_second, stored_second = told.partition(".")[0], row["received_at"].partition(".")[0]
        # a replay joins a repeated erasure with the person's open request, which then has the earlier date of receipt
        if stored_second > told_second or (stored_second != told_second and not self.restored):
            raise Violation("date lost", f"The erasure {id_} was received at {told}, not {row['received_at']}.")

    def check_champions(self) -> None:
        """A champion was trained on exactly the examples in force: nothing, not even the gate, delayed a change."""
        query = "SELECT id, head, champion FROM models WHERE champion IS NOT NULL AND held_at IS NULL"
        for id_, head, champion in self.state.execute(query).fetchall():
            if self.checker.is_waiting(id_) or self.restored:
                continue
            trained = self.checker.trained_on(self.checker.versions[id_, champion])
            if trained != (expected := self.state.in_force(id_, head)) and expected:
                detail = f"Champion {champion} of model {id_} has {sorted(trained or ())}, not {sorted(expected)}."
                raise Violation("champion outdated", detail)

    def check_files(self) -> None:
        """The store has the files of all versions, and no others; files of a lost timeline stay until an erasure."""
        known = {file for (file,) in self.state.execute("SELECT file FROM versions WHERE state != 'purged'")}
        there = self.world.store.contents().keys() | self.world.store.leftovers().keys()
        if not self.restored and there != known:
            raise Violation("files", f"superfluous: {sorted(there - known)}, missing: {sorted(known - there)}")

    def check_mlflow(self) -> None:
        if self.restored:
            return
        for id_, champion in self.state.execute("SELECT id, champion FROM models"):
            named = self.world.mlflow.champions.get(id_)
            if named != champion:
                raise Violation("mlflow champion", f"Model {id_}: MLflow names {named}, not {champion}.")
        purged: set[Any] = set(self.state.execute("SELECT model_id, number FROM versions WHERE state = 'purged'"))
        if left := [key for key in self.world.mlflow.weights if key[:2] in purged]:
            raise Violation("mlflow weights", f"MLflow still has {left}.")

    def check_webhooks(self) -> None:
        rows = self.state.rows("SELECT message_id, state, type FROM deliveries")
        delivered = [row["message_id"] for row in rows if row["state"] == "delivered"]
        if missing := set(delivered).difference(self.world.received):
            raise Violation("webhooks", f"{sorted(missing)} were not delivered.")
        if self.restored:
            return
        [(promoted,)] = self.state.execute("SELECT count(*) FROM promotions")
        [(rejected,)] = self.state.execute("SELECT count(*) FROM versions WHERE state = 'rejected'")
        sent = Counter(row["type"] for row in rows)
        if sent["version.promoted"] != promoted or sent["version.rejected"] < rejected:
            detail = f"{promoted} versions were promoted, and {rejected} rejected, but the events are {sent}."
            raise Violation("webhooks", detail)
