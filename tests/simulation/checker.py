"""The checker: knows what callers were told, reads the state after every commit, and raises at the first violation.

It is independent of the product: it uses plain SQL and the contents of files, and no function of the product.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tests.simulation.observed_state import ObservedState, Violation, read_token
from tests.simulation.quality_checks import QualityChecks
from tests.simulation.quarantine_checks import QuarantineChecks
from tests.simulation.register_checks import RegisterChecks
from tests.simulation.world import SimulatedDatabase, World, tokens_in

if TYPE_CHECKING:
    from tests.simulation.callers import Callers

VERSION = "model_id, number, position, removals_position, state, file, job_id, parent, sha256"
MODEL = "id, name, head, champion, tip, train_count, holdout_count, quarantined_count, covered_position"
OUTAGES = ("database_unavailable", "store_unavailable", "mlflow_unavailable", "mlflow_busy", "receipts_behind")
EXPECTED_ERRORS = (
    "worker_lost",
    "nothing_to_train_on",
    "version_not_rebuildable",
    "job_ended",
    "not_gone_yet",
    "analysis_deleted",
    "champion_missing",
    "erasure_in_progress",
    "pool_empty",
    *OUTAGES,
)
"""Of jobs: other errors are bugs."""
ENDED = ("succeeded", "failed", "cancelled")


def tokens_in_journal(data: bytes) -> set[int]:
    """The tokens of the examples whose contents a file of the journal has."""
    entries = json.loads(json.loads(data)["entries"])
    rows = [row for entry in entries for row in entry.get("rows", ()) if row is not None]
    return {read_token(base64.b64decode(row["x"])) for row in rows}


class Checker:
    def __init__(self, database: SimulatedDatabase, world: World, callers: Callers) -> None:
        self.state, self.world, self.callers = ObservedState(database), world, callers
        self.restored_at: float | None = None
        self.lost: tuple[float, float] | None = None
        """Requests that were acknowledged between these times may be lost, by a restore."""
        self.erased: set[int] = set()
        """Tokens of examples whose erasure was confirmed by a receipt."""
        self.issued: set[str] = set()
        """Ids of the erasures whose receipts were checked; a replay imports them again."""
        self.unrecorded = False
        """Whether a restore found changes that were not in the store yet, so that nobody can repeat them."""
        self.due: dict[str, tuple[str, bool]] = {}
        self.extended_to: dict[str, str] = {}
        """The due dates of requests that were extended: a restore undoes an extension, and a replay repeats it."""
        self.reset()

    def reset(self) -> None:
        """Forget what belongs to the present database."""
        self.state.reset()
        self.quarantine = QuarantineChecks(self.state, self.callers)
        self.quality = QualityChecks(self.state, self.world, self.erased)
        self.register = RegisterChecks(self.state, self.restored_at is not None)
        self.versions: dict[tuple[int, int], dict[str, Any]] = {}
        self.trained: dict[tuple[int, int], Collection[int]] = {}
        self.models: dict[int, dict[str, Any]] = {}
        self.promotions = 0
        self.receipts = 0
        self.subjects: dict[str, tuple[bytes, str]] = {}
        """By erasure: the hash of the person, which a completed erasure no longer has, and when it was requested."""
        self.jobs: dict[str, tuple[Any, ...]] = {}
        self.championed: set[int] = set()

    def close(self) -> None:
        self.state.close()

    def note_unrecorded(self) -> None:
        """Look, before a restore, for changes that are not in the store yet."""
        waiting = ("SELECT id FROM journal_entries WHERE NOT written", "SELECT 1 FROM register_leaves WHERE NOT filed")
        self.unrecorded = self.unrecorded or any(self.state.has(query) for query in waiting)

    def is_behind(self) -> bool:
        """Whether the store has leaves or entries of the journal that the database lacks."""
        [(leaves,)] = self.state.execute("SELECT count(*) FROM register_leaves")
        numbers = [int(name.rpartition("/")[2].partition(".")[0]) for name in self.world.store.contents("register/")]
        known = {f"journal/{name}" for (name,) in self.state.execute("SELECT name FROM journal_files")}
        return max(numbers, default=-1) >= leaves or not known.issuperset(self.world.store.contents("journal/"))

    def note_restore(self, taken_at: float) -> None:
        """The database was restored from a copy that was made at a time."""
        self.restored_at = self.world.baton.elapsed
        start = taken_at if self.lost is None else min(taken_at, self.lost[0])
        self.lost = start, self.restored_at
        self.reset()
        self.load()

    def load(self) -> None:
        """Take over the present state without judging it."""
        self.state.read_examples()
        self.state.read_pending()
        self.quarantine.load()
        self.quality.load()
        for row in self.state.rows(f"SELECT {VERSION} FROM versions"):
            self.versions[row["model_id"], row["number"]] = row
        self.promotions = self.state.rows("SELECT max(id) AS n FROM promotions")[0]["n"] or 0
        self.receipts = self.state.rows("SELECT max(number) AS n FROM receipts")[0]["n"] or 0

    def is_lost(self, at: float | None) -> bool:
        """Whether a restore may have undone what was acknowledged at a time."""
        return self.lost is not None and (at is None or self.lost[0] <= at <= self.lost[1] + 60.0)

    # After every commit

    def observe(self, written: Collection[str] | None = None) -> None:
        """Check the state after a transaction that wrote some tables; by default, after any."""

        def wrote(*tables: str) -> bool:
            return written is None or not written.isdisjoint(tables)

        written = None if written is None else frozenset(written)
        ledger = self.state.has_moved() or wrote("examples", "models")
        if ledger:
            self.state.read_examples()
        if ledger or wrote("pending_examples"):
            self.state.read_pending()
        if wrote("versions"):
            self.check_versions()
        if ledger or wrote("versions", "promotions"):
            self.check_models()
        if ledger:
            self.quarantine.check_left({id_: model["name"] for id_, model in self.models.items()})
        if wrote("quality_windows", "models"):
            self.quality.check_windows()
        if wrote("jobs"):
            self.check_jobs()
        if wrote("erasures"):
            self.check_deadlines()
        if ledger or wrote("pending_examples"):
            self.quality.check_pending()
        if wrote("pending_examples", "recorded_predictions", "versions", "quality_windows"):
            self.quality.check_predictions(self.versions)
        if wrote("receipts"):
            self.check_receipts()
        if wrote("receipts", "register_leaves"):
            self.register.check()
        if ledger or wrote("analyses", "pending_examples"):
            self.quality.check_named()
        if wrote("drift_reports"):
            self.quality.check_drift_reports()

    def check_versions(self) -> None:
        for row in self.state.rows(f"SELECT {VERSION} FROM versions"):
            key = row["model_id"], row["number"]
            if key not in self.versions:
                self.check_new_version(row)
            self.versions[key] = row

    def check_new_version(self, row: dict[str, Any]) -> None:
        name = f"version {row['number']} of model {row['model_id']}"
        data = self.world.store.contents().get(row["file"])
        if data is None:
            raise Violation("file missing", f"{name} was recorded without its file.")
        trained = tokens_in(data)
        expected = self.state.in_force(row["model_id"], row["position"], row["removals_position"])
        if trained & self.erased:
            raise Violation("erased example used", f"{name} was trained on {sorted(trained & self.erased)}.")
        if self.restored_at is not None and self.is_behind():
            raise Violation("trained before the replay", f"{name} was recorded while the store was ahead.")
        if trained != expected:
            detail = f"{name} at {row['position']} was trained on {sorted(trained)}, not on {sorted(expected)}."
            raise Violation("wrong examples", detail)
        self.trained[row["model_id"], row["number"]] = trained
        if row["state"] == "rejected":
            self.quarantine.check_rejected(row, self.models[row["model_id"]], self.versions)

    def trained_on(self, row: dict[str, Any]) -> Collection[int] | None:
        """Tokens that a version was trained on; None if its file does not exist."""
        key = row["model_id"], row["number"]
        if key not in self.trained:
            data = self.world.store.contents().get(row["file"])
            if data is None:
                return None
            self.trained[key] = tokens_in(data)
        return self.trained[key]

    def check_models(self) -> None:
        for model in self.state.rows(f"SELECT {MODEL} FROM models"):
            id_, champion = model["id"], model["champion"]
            self.models[id_] = model
            self.check_counts(model)
            if champion is None:
                if id_ in self.championed and model["train_count"] and model["tip"] is not None:
                    raise Violation("no champion", f"Model {id_} has a tip, but no champion any more.")
            else:
                self.championed.add(id_)
                self.check_champion(model, self.versions[id_, champion])
            tip = self.versions.get((id_, model["tip"]))
            if tip is not None and model["covered_position"] > tip["position"]:
                trained, covered = self.trained_on(tip), self.state.in_force(id_, model["covered_position"])
                if trained is not None and trained != covered:
                    detail = f"The tip of model {id_} has {sorted(trained)}, but {sorted(covered)} are in force."
                    raise Violation("not covered", detail)
        self.check_promotions()

    def check_counts(self, model: dict[str, Any]) -> None:
        rows = [row for row in self.state.examples.values() if row.model == model["id"]]
        in_force = [row for row in rows if row.removed is None]
        held_out = sum(row.holdout for row in in_force)
        quarantined = sum(row.quarantine is not None for row in rows)
        counts = (len(in_force) - held_out, held_out, quarantined)
        if counts != (model["train_count"], model["holdout_count"], model["quarantined_count"]):
            raise Violation("wrong counts", f"Model {model['id']} has {counts}, but records {model}.")

    def check_champion(self, model: dict[str, Any], version: dict[str, Any]) -> None:
        name = f"The champion {version['number']} of model {model['id']}"
        if version["state"] != "champion":
            raise Violation("champion state", f"{name} is {version['state']}.")
        if version["file"] not in self.world.store.contents() and self.restored_at is None:
            raise Violation("champion file", f"{name} has no file.")

    def check_promotions(self) -> None:
        for row in self.state.rows("SELECT * FROM promotions WHERE id > ? ORDER BY id", self.promotions):
            self.promotions = row["id"]
            model, version = row["model_id"], self.versions[row["model_id"], row["version"]]
            before = self.versions.get((model, row["previous"]))
            if row["by"] == "policy" and before is not None and version["position"] < before["position"]:
                detail = f"Version {row['version']} at {version['position']} replaced one at {before['position']}."
                raise Violation("champion went back", detail)
            trained = set(self.trained_on(version) or ())
            if bad := trained & self.state.requested(model):
                detail = f"Version {row['version']} was promoted, and was trained on {sorted(bad)}."
                raise Violation("promoted with erased data", detail)
            known = self.trained_on(before) if before is not None else None
            self.quarantine.check_promotion(row, trained, known or ())

    def check_jobs(self) -> None:
        for row in self.state.rows("SELECT id, state, version, finished_at, message, error FROM jobs"):
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
        if not self.state.has("SELECT id FROM jobs WHERE id = ?", job_id) and job_id not in self.jobs:
            raise Violation("message before commit", f"A message names the job {job_id}, which does not exist.")

    def check_deadlines(self) -> None:
        columns = "id, due_at, extension, subject, created_at"
        for row in self.state.rows(f"SELECT {columns} FROM erasures JOIN erasure_subjects ON id = erasure_id"):
            due, extended = self.due.get(row["id"], (row["due_at"], False))
            moved = row["due_at"] > due and row["due_at"] != self.extended_to.get(row["id"])
            if moved and (extended or row["extension"] is None):
                raise Violation("deadline moved", f"{row['id']}: from {due} to {row['due_at']}.")
            if row["extension"] is not None:
                self.extended_to[row["id"]] = row["due_at"]
            self.due[row["id"]] = row["due_at"], row["extension"] is not None
            if row["subject"] is not None:
                self.subjects[row["id"]] = row["subject"], row["created_at"]

    def check_receipts(self) -> None:
        for row in self.state.rows("SELECT number, erasure_id FROM receipts WHERE number > ?", self.receipts):
            self.receipts = row["number"]
            self.world.baton.note(f"receipt {row['number']}")
            self.check_receipt(row["erasure_id"])

    def check_receipt(self, erasure: str) -> None:
        """Nothing of the person is left when a receipt is written."""
        parts = self.state.rows("SELECT model_id, positions FROM erasure_parts WHERE erasure_id = ?", erasure)
        if erasure in self.issued:
            return  # imported by a replay
        self.issued.add(erasure)
        for part in parts:
            model, positions = part["model_id"], set(json.loads(part["positions"]))
            tokens = {self.state.content[model, at] for at in positions}
            if left := [at for at in positions if (model, at) in self.state.examples]:
                raise Violation("receipt before purge", f"{len(left)} examples are left.")
            self.check_gone(tokens, "receipt before purge")
            self.quality.check_purged(model, positions)
            self.erased |= tokens
        if erasure in self.subjects:
            self.erased |= self.quality.check_pending_gone(*self.subjects[erasure])
        self.quality.check_drift_reports(every=True)

    def check_gone(self, tokens: set[int], kind: str) -> None:
        """No weights depend on these examples, and the journal does not contain them."""
        store = self.world.store
        for name, data in (store.contents() | store.leftovers()).items():
            if found := tokens_in(data) & tokens:
                raise Violation(kind, f"The file {name} was trained on {sorted(found)}.")
        for name, data in (store.contents("journal/") | store.leftovers("journal/")).items():
            if found := tokens_in_journal(data) & tokens:
                raise Violation(kind, f"The file {name} has the contents of {sorted(found)}.")
        for key, data in self.world.mlflow.weights.items():
            if found := tokens_in(data) & tokens:
                raise Violation(kind, f"MLflow has version {key[1]} of model {key[0]}, trained on {sorted(found)}.")

    # While a history settles

    def held_models(self) -> list[str]:
        return [name for (name,) in self.state.execute("SELECT name FROM models WHERE held_at IS NOT NULL")]

    def undecided_models(self) -> list[str]:
        """Models with examples in quarantine."""
        query = "SELECT DISTINCT name FROM models m JOIN examples e ON e.model_id = m.id WHERE quarantine IS NOT NULL"
        return [name for (name,) in self.state.execute(query)]

    def has_failed_erasures(self) -> bool:
        return self.state.has("SELECT id FROM erasures WHERE state = 'failed'")

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
            if found := self.state.rows(query):
                return f"{what}: {[row['id'] for row in found]}"
        for model in self.state.rows(f"SELECT {MODEL} FROM models WHERE held_at IS NULL"):
            tip = self.versions.get((model["id"], model["tip"]))
            covered = max(tip["position"], model["covered_position"]) if tip else 0
            if model["train_count"] and covered < model["head"] and not self.is_waiting(model["id"]):
                return f"model {model['id']} is at {covered} of {model['head']}"
        return ""

    def is_waiting(self, model: int) -> bool:
        """Whether nobody adapts a model, because an erasure is held or the last job failed."""
        last = self.state.rows(
            "SELECT state FROM jobs WHERE model_id = ? AND kind = 'adapt' ORDER BY created_at DESC LIMIT 1", model
        )
        given_up = bool(last) and last[0]["state"] in ("failed", "cancelled")
        return given_up or self.state.has("SELECT id FROM erasures WHERE state = 'held'")
