"""The checker: knows what callers were told, reads the state after every commit, and raises at the first violation.

It is independent of the product: it uses plain SQL and the contents of files, and no function of the product.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from typing import TYPE_CHECKING, Any

from tests.simulation.world import SimulatedDatabase, World, tokens_in

if TYPE_CHECKING:
    from tests.simulation.callers import Callers

OPEN = ("received", "adapting", "verifying", "purging", "failed")
VERSION = "model_id, number, position, state, file"
MODEL = "id, head, champion, tip, train_count, quarantined_count, covered_position"
OUTAGES = ("database_unavailable", "store_unavailable", "mlflow_unavailable", "mlflow_busy", "receipts_behind")
EXPECTED_ERRORS = ("worker_lost", "nothing_to_train_on", "job_ended", "not_gone_yet", *OUTAGES)
"""Of jobs: other errors are bugs."""
ENDED = ("succeeded", "failed", "cancelled")


class Violation(BaseException):
    """A property does not hold. Not an Exception: the product must not handle it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Checker:
    def __init__(self, database: SimulatedDatabase, world: World, callers: Callers) -> None:
        self.database, self.world, self.callers = database, world, callers
        self.restored_at: float | None = None
        self.lost: tuple[float, float] | None = None
        """Requests that were acknowledged between these times may be lost, by a restore."""
        self.erased: set[int] = set()
        """Tokens of examples whose erasure was confirmed by a receipt."""
        self.connection: sqlite3.Connection | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what belongs to the present database."""
        self.close()
        self.content: dict[tuple[int, int], int] = {}
        """Tokens by model and position."""
        self.heads: dict[int, int] = {}
        self.versions: dict[tuple[int, int], dict[str, Any]] = {}
        self.trained: dict[tuple[int, int], set[int]] = {}
        self.promotions = 0
        self.receipts = 0
        self.due: dict[str, tuple[str, bool]] = {}
        self.jobs: dict[str, tuple[Any, ...]] = {}
        self.championed: set[int] = set()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def note_restore(self, taken_at: float) -> None:
        """The database was restored from a copy that was made at a time."""
        self.restored_at = self.world.baton.elapsed
        start = taken_at if self.lost is None else min(taken_at, self.lost[0])
        self.lost = start, self.restored_at
        self.reset()
        self.load()

    def load(self) -> None:
        """Take over the present state without judging it."""
        self.scan_examples()
        for row in self.rows(f"SELECT {VERSION} FROM versions"):
            self.versions[row["model_id"], row["number"]] = row
        self.promotions = self.rows("SELECT max(id) AS n FROM promotions")[0]["n"] or 0
        self.receipts = self.rows("SELECT max(number) AS n FROM receipts")[0]["n"] or 0

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        if self.connection is None:
            self.connection = sqlite3.connect(str(self.database.engine.url.database), isolation_level=None)
            self.connection.row_factory = sqlite3.Row
        return [dict(row) for row in self.connection.execute(query, values)]

    # After every commit

    def observe(self) -> None:
        self.scan_examples()
        self.check_versions()
        self.check_models()
        self.check_jobs()
        self.check_erasures()

    def scan_examples(self) -> None:
        heads = {row["id"]: row["head"] for row in self.rows("SELECT id, head FROM models")}
        for model, head in heads.items():
            seen = self.heads.get(model, 0)
            if head == seen:
                continue
            query = "SELECT position, x FROM examples WHERE model_id = ? AND position > ? AND length(x) > 0"
            for row in self.rows(query, model, seen):
                self.content[model, row["position"]] = int(struct.unpack("<f", row["x"])[0])
        self.heads = heads

    def in_force(self, model: int, at: int) -> set[int]:
        """Tokens of the training examples in force at a position."""
        rows = self.rows(
            "SELECT position FROM examples WHERE model_id = ? AND position <= ? AND NOT holdout"
            " AND (removed IS NULL OR removed > ?)",
            *(model, at, at),
        )
        return {self.content[model, row["position"]] for row in rows}

    def requested(self, model: int) -> set[int]:
        """Tokens of examples in a model whose erasure is in progress."""
        rows = self.rows(
            "SELECT p.positions FROM erasure_parts p JOIN erasures e ON e.id = p.erasure_id WHERE p.model_id = ?"
            f" AND e.state IN {OPEN} AND p.state IN {OPEN}",
            model,
        )
        return {self.content[model, at] for row in rows for at in json.loads(row["positions"])}

    def check_versions(self) -> None:
        for row in self.rows(f"SELECT {VERSION} FROM versions"):
            key = row["model_id"], row["number"]
            if key not in self.versions:
                self.check_new_version(row)
            self.versions[key] = row

    def check_new_version(self, row: dict[str, Any]) -> None:
        name = f"version {row['number']} of model {row['model_id']}"
        data = self.world.store.contents().get(row["file"])
        if data is None:
            raise Violation("file missing", f"{name} was recorded without its file.")
        trained, expected = tokens_in(data), self.in_force(row["model_id"], row["position"])
        if trained & self.erased:
            raise Violation("erased example used", f"{name} was trained on {sorted(trained & self.erased)}.")
        if trained != expected:
            detail = f"{name} at {row['position']} was trained on {sorted(trained)}, not on {sorted(expected)}."
            raise Violation("wrong examples", detail)
        self.trained[row["model_id"], row["number"]] = trained

    def trained_on(self, row: dict[str, Any]) -> set[int] | None:
        """Tokens that a version was trained on; None if its file does not exist."""
        key = row["model_id"], row["number"]
        if key not in self.trained:
            data = self.world.store.contents().get(row["file"])
            if data is None:
                return None
            self.trained[key] = tokens_in(data)
        return self.trained[key]

    def check_models(self) -> None:
        for model in self.rows(f"SELECT {MODEL} FROM models"):
            id_, champion = model["id"], model["champion"]
            counts = self.rows(
                "SELECT sum(removed IS NULL AND NOT holdout) AS train, sum(quarantine IS NOT NULL) AS quarantined"
                " FROM examples WHERE model_id = ?",
                id_,
            )[0]
            if (counts["train"] or 0, counts["quarantined"] or 0) != (model["train_count"], model["quarantined_count"]):
                raise Violation("wrong counts", f"Model {id_} has {counts}, but records {model}.")
            if champion is None:
                if id_ in self.championed and model["train_count"] and model["tip"] is not None:
                    raise Violation("no champion", f"Model {id_} has a tip, but no champion any more.")
            else:
                self.championed.add(id_)
                self.check_champion(model, self.versions[id_, champion])
            tip = self.versions.get((id_, model["tip"]))
            if tip is not None and model["covered_position"] > tip["position"]:
                trained, covered = self.trained_on(tip), self.in_force(id_, model["covered_position"])
                if trained is not None and trained != covered:
                    detail = f"The tip of model {id_} has {sorted(trained)}, but {sorted(covered)} are in force."
                    raise Violation("not covered", detail)
        self.check_promotions()

    def check_champion(self, model: dict[str, Any], version: dict[str, Any]) -> None:
        name = f"The champion {version['number']} of model {model['id']}"
        if version["state"] != "champion":
            raise Violation("champion state", f"{name} is {version['state']}.")
        if version["file"] not in self.world.store.contents() and self.restored_at is None:
            raise Violation("champion file", f"{name} has no file.")

    def check_promotions(self) -> None:
        for row in self.rows("SELECT * FROM promotions WHERE id > ? ORDER BY id", self.promotions):
            self.promotions = row["id"]
            version = self.versions[row["model_id"], row["version"]]
            before = self.versions.get((row["model_id"], row["previous"]))
            if row["by"] == "policy" and before is not None and version["position"] < before["position"]:
                detail = f"Version {row['version']} at {version['position']} replaced one at {before['position']}."
                raise Violation("champion went back", detail)
            trained = self.trained_on(version) or set()
            if bad := trained & self.requested(row["model_id"]):
                detail = f"Version {row['version']} was promoted, and was trained on {sorted(bad)}."
                raise Violation("promoted with erased data", detail)

    def check_jobs(self) -> None:
        for row in self.rows("SELECT id, state, version, finished_at, message, error FROM jobs"):
            facts = tuple(row.values())
            if row["error"] and json.loads(row["error"])["code"] not in EXPECTED_ERRORS:
                raise Violation("job error", f"{row['message']} {row['error']}")
            before = self.jobs.get(row["id"])
            if before is not None and before != facts:
                raise Violation("job ended twice", f"{before} became {facts}.")
            if row["state"] in ENDED:
                self.jobs[row["id"]] = facts

    def check_message(self, job_id: str) -> None:
        """No message is sent before its job is committed."""
        if not self.rows("SELECT id FROM jobs WHERE id = ?", job_id) and job_id not in self.jobs:
            raise Violation("message before commit", f"A message names the job {job_id}, which does not exist.")

    def check_erasures(self) -> None:
        for row in self.rows("SELECT id, due_at, extension, state FROM erasures"):
            due, extended = self.due.get(row["id"], (row["due_at"], False))
            if row["due_at"] > due and (extended or row["extension"] is None):
                raise Violation("deadline moved", f"{row['id']}: from {due} to {row['due_at']}.")
            self.due[row["id"]] = row["due_at"], row["extension"] is not None
        for row in self.rows("SELECT number, erasure_id FROM receipts WHERE number > ?", self.receipts):
            self.receipts = row["number"]
            self.check_receipt(row["erasure_id"])

    def check_receipt(self, erasure: str) -> None:
        """Nothing of the person is left when a receipt is written."""
        parts = self.rows("SELECT model_id, positions FROM erasure_parts WHERE erasure_id = ?", erasure)
        if not self.rows("SELECT id FROM erasures WHERE id = ? AND state = 'completed'", erasure):
            return  # imported by a replay
        for part in parts:
            positions = json.loads(part["positions"])
            tokens = {self.content[part["model_id"], at] for at in positions}
            marks = ", ".join(map(str, positions))
            query = f"SELECT position FROM examples WHERE model_id = ? AND position IN ({marks})"
            if left := self.rows(query, part["model_id"]):
                raise Violation("receipt before purge", f"{len(left)} examples are left.")
            self.check_gone(tokens, "receipt before purge")
            self.erased |= tokens

    def check_gone(self, tokens: set[int], kind: str) -> None:
        """No weights depend on these examples."""
        for name, data in self.world.store.contents().items():
            if found := tokens_in(data) & tokens:
                raise Violation(kind, f"The file {name} was trained on {sorted(found)}.")
        for key, data in self.world.mlflow.weights.items():
            if found := tokens_in(data) & tokens:
                raise Violation(kind, f"MLflow has version {key[1]} of model {key[0]}, trained on {sorted(found)}.")

    # At the end

    def has_failed_erasures(self) -> bool:
        return bool(self.rows("SELECT id FROM erasures WHERE state = 'failed'"))

    def unfinished(self) -> str:
        """What is left to do; empty if nothing is."""
        queries = {
            "jobs": "SELECT id FROM jobs WHERE state IN ('queued', 'running')",
            "messages": "SELECT id FROM outbox",
            "events for MLflow": "SELECT id FROM tracking_events",
            "deliveries": "SELECT id FROM deliveries WHERE state = 'pending'",
            "erasures": "SELECT id FROM erasures WHERE state IN ('received', 'adapting', 'verifying', 'purging')",
            "orphans": "SELECT path AS id FROM orphan_files",
        }
        for what, query in queries.items():
            if found := self.rows(query):
                return f"{what}: {[row['id'] for row in found]}"
        for model in self.rows(f"SELECT {MODEL} FROM models WHERE held_at IS NULL"):
            tip = self.versions.get((model["id"], model["tip"]))
            covered = max(tip["position"], model["covered_position"]) if tip else 0
            held = self.rows("SELECT id FROM erasures WHERE state = 'held'")
            failed = self.rows(
                "SELECT state FROM jobs WHERE model_id = ? AND kind = 'adapt' ORDER BY created_at DESC LIMIT 1",
                model["id"],
            )
            given_up = failed and failed[0]["state"] in ("failed", "cancelled")
            if model["train_count"] and covered < model["head"] and not held and not given_up:
                return f"model {model['id']} is at {covered} of {model['head']}"
        return ""

    def check_end(self) -> None:
        self.observe()
        self.check_gaps()
        self.check_requests()
        self.check_gone(self.erased, "erased data left")
        left = {row["model_id"]: row for row in self.rows("SELECT * FROM examples")}
        rows = self.rows("SELECT model_id, position FROM examples WHERE length(x) > 0")
        tokens = {self.content[row["model_id"], row["position"]] for row in rows}
        if bad := tokens & self.erased:
            raise Violation("erased data left", f"The database of {list(left)} still has {sorted(bad)}.")
        self.check_files()
        self.check_mlflow()
        self.check_webhooks()

    def check_gaps(self) -> None:
        for model in self.rows("SELECT id, head FROM models"):
            expected = 1
            for row in self.rows("SELECT first, last FROM changes WHERE model_id = ? ORDER BY last", model["id"]):
                if row["first"] != expected or row["last"] < row["first"]:
                    raise Violation("gap", f"Model {model['id']}: {row} instead of {expected}.")
                expected = row["last"] + 1
            if expected != model["head"] + 1:
                raise Violation("gap", f"Model {model['id']}: the head is {model['head']}, not {expected - 1}.")

    def is_lost(self, at: float | None) -> bool:
        """Whether a restore may have undone what was acknowledged at a time."""
        return self.lost is not None and (at is None or self.lost[0] <= at <= self.lost[1] + 60.0)

    def check_requests(self) -> None:
        """Every acknowledged request has taken effect once, and nothing else has happened."""
        rows = self.rows(
            "SELECT m.name, e.position, e.model_id, e.id, e.removed, e.quarantine, e.subject FROM examples e"
            " JOIN models m ON m.id = e.model_id WHERE length(e.x) > 0"
        )
        present: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            present.setdefault(self.content[row["model_id"], row["position"]], []).append(row)
        in_force = {token: [row for row in found if row["removed"] is None] for token, found in present.items()}
        if twice := [token for token, found in in_force.items() if len(found) > 1]:
            raise Violation("applied twice", f"The examples {twice} are in force twice.")
        requests = self.callers.requests
        removable = {id_ for r in requests if r.kind in ("remove", "correct") and r.may_have_happened for id_ in r.ids}
        erasable = {r.subject for r in requests if r.kind == "erase" and r.may_have_happened}
        discards = any(r.kind == "discard" and r.may_have_happened for r in requests)
        for request in requests:
            done = request.acknowledged_at is not None
            if request.kind in ("add", "correct") and done and not self.is_lost(request.acknowledged_at):
                for token, id_ in zip(request.tokens, request.ids, strict=True):
                    subject = self.subject_of(token, request)
                    gone = id_ in removable if request.kind == "add" else self.replaced_later(request)
                    excused = gone or subject in erasable or (discards and not in_force.get(token))
                    found = in_force.get(token) or [row for row in present.get(token, []) if row["quarantine"]]
                    if not found and not excused:
                        raise Violation("request lost", f"The example {id_} ({token}) was acknowledged, but is gone.")
            if request.kind == "remove" and done and not self.is_lost(request.acknowledged_at):
                names = {row["id"] for found in in_force.values() for row in found if row["name"] == request.model}
                came_back = names.intersection(request.ids) - set(request.response["unknown"])
                if came_back and not self.restored_at:
                    raise Violation("removal lost", f"{sorted(came_back)} are in force again.")
        self.check_erasure_requests()

    def subject_of(self, token: int, request: Any) -> str | None:
        if request.kind == "correct":
            return self.callers.subject_of.get(int(request.ids[0][1:]))
        return self.callers.subject_of.get(token)

    def replaced_later(self, request: Any) -> bool:
        later = ("remove", "correct")
        others = [r for r in self.callers.requests if r is not request and r.kind in later and r.may_have_happened]
        return any(set(request.ids).intersection(r.ids) for r in others)

    def check_erasure_requests(self) -> None:
        states = {row["id"]: row["state"] for row in self.rows("SELECT id, state FROM erasures")}
        for request in self.callers.requests:
            if request.kind == "erase" and request.response and not self.is_lost(request.acknowledged_at):
                state = states.get(request.response["id"])
                if state is None and self.restored_at is None:
                    raise Violation("request lost", f"The erasure {request.response['id']} does not exist.")
                if state not in ("completed", "refused", "held", None):
                    raise Violation("erasure not completed", f"The erasure {request.response['id']} is {state}.")

    def check_files(self) -> None:
        """The store has the files of all versions, and no others; files of a lost timeline stay until an erasure."""
        known = {row["file"] for row in self.rows("SELECT file FROM versions WHERE state != 'purged'")}
        there = set(self.world.store.contents())
        if self.restored_at is None and there != known:
            raise Violation("files", f"superfluous: {sorted(there - known)}, missing: {sorted(known - there)}")

    def check_mlflow(self) -> None:
        if self.restored_at is not None:
            return
        for model in self.rows("SELECT id, champion FROM models"):
            named, champion = self.world.mlflow.champions.get(model["id"]), model["champion"]
            if named != champion:
                raise Violation("mlflow champion", f"Model {model['id']}: MLflow names {named}, not {champion}.")
        rows = self.rows("SELECT model_id, number FROM versions WHERE state = 'purged'")
        purged = {(row["model_id"], row["number"]) for row in rows}
        if left := [key for key in self.world.mlflow.weights if key[:2] in purged]:
            raise Violation("mlflow weights", f"MLflow still has {left}.")

    def check_webhooks(self) -> None:
        rows = self.rows("SELECT message_id, state, type FROM deliveries")
        delivered = [row["message_id"] for row in rows if row["state"] == "delivered"]
        if missing := set(delivered).difference(self.world.received):
            raise Violation("webhooks", f"{sorted(missing)} were not delivered.")
        if self.restored_at is None:
            promoted = self.rows("SELECT count(*) AS n FROM promotions")[0]["n"]
            if promoted != sum(row["type"] == "version.promoted" for row in rows):
                raise Violation("webhooks", f"There were {promoted} promotions, but other events: {rows}.")
