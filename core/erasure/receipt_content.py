"""The report on an erasure: the content of a receipt, as data.

The report of a model grows while its job runs, and is stored in the row of the part meanwhile; `receipt_text` writes
its sentences. Once all models are done, `receipts.py` signs the complete report.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from core.erasure.evidence import Evidence, evidence_from, evidence_json
from core.kprior.certificate.certificate import Certificate
from core.tables.documents import certificate_json, read_certificate
from core.tables.erasures import Part


class Method(StrEnum):
    """How a model forgot a person."""

    ADAPTED = "adapted"
    RETRAINED = "retrained"
    WITHDRAWN = "withdrawn"
    """The model was withdrawn because no training examples were left."""
    UNKNOWN = "unknown"
    """The version in use is older than the person's first example."""
    DELETED = "deleted"
    """The model was deleted."""


@dataclass(frozen=True)
class ComparisonSummary:
    """The comparison of the adapted with the retrained version."""

    disagreement: float | None
    """The fraction of predictions that differ; None if unknown."""


@dataclass(frozen=True)
class Outcome:
    """How a model forgot, and how close it is to a model that was never trained on the person's data."""

    method: Method
    words: str
    version: int | None = None
    commitment: str | None = None
    """Salted commitment to the version's file."""
    certificate: Certificate | None = None
    compared: ComparisonSummary | None = None
    """If both an adapted and a retrained version exist."""
    tolerance: float | None = None
    """Tolerance of the bound, relative to the norm of the weights."""


@dataclass(frozen=True)
class Familiarity:
    """How well the losses distinguish the person's examples from unseen ones, as an AUC; 0.5: not at all."""

    before: float
    after: float


FILES = "files in MLflow"


@dataclass(frozen=True)
class Deleted:
    """Numbers of deleted items; null: not counted yet."""

    examples: int | None = None
    files: Annotated[int | None, Field(alias=FILES)] = None
    versions: int | None = None
    analyses: int | None = None
    """Results of analyses."""


@dataclass(frozen=True)
class KeptVersions:
    """Versions that are not purged, and the reason."""

    versions: list[int]
    reason: str


@dataclass(frozen=True)
class VersionFates:
    """Which of a model's versions were purged for the person, and which were kept."""

    purged: list[int]
    stay: list[KeptVersions]


@dataclass(frozen=True)
class Copy:
    """A copy of the person's data, or of a version trained on it, that left Amend before the erasure."""

    what: str
    """The action in the audit log."""
    at: str
    """When the copy was made, or the first of several."""
    by: str
    """Id of the API key."""
    name: str | None = None
    """Name of the API key."""
    version: int | None = None
    count: int = 1
    """Number of copies."""
    last_at: str | None = None
    """When the last copy was made; null if there was only one."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What reports and receipts state about one model in the same form."""

    # descriptions, not docstrings, because other classes extend it
    model: str
    examples: Annotated[int, Field(description="Number of the person's examples in this model.")]
    # rounded: for a single example, the exact value would reveal the rank of its loss in the holdout
    audit: Familiarity | None = None
    deleted: Deleted | None = None
    versions: VersionFates | None = None
    checked: Annotated[
        dict[str, int] | None,
        Field(description="Number of remaining items found in each place that was searched after the erasure."),
    ] = None
    database: Annotated[str | None, Field(description="How deleted rows were removed from the database's files.")] = (
        None
    )
    caches: str | None = None
    was_in_use: Annotated[
        bool | None,
        Field(
            description="Whether the version in use when the request was filed had been trained on the person's "
            "examples."
        ),
    ] = None
    copies: Annotated[
        list[Copy] | None,
        Field(
            description="Downloads of versions trained on the person's examples, and exports of these examples, from "
            "the audit log."
        ),
    ] = None
    kept_until: Annotated[
        str | None, Field(description="Date when the last version that was trained on the person's examples is purged.")
    ] = None
    encoder: Annotated[
        dict[str, str] | None,
        Field(
            description="Frozen encoder of the version: `kind`, `digest` and what it was `trained_on`, `other` or "
            "`examples`."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModelReport(ModelFacts):
    """What was done in one model."""

    outcome: Outcome | None = None
    evidence: Evidence | None = None
    """The objective and the retained rows of the version in `outcome`."""
    in_mlflow: bool | None = None
    """Of a deleted model, until all of it is gone: whether MLflow has data of it. Not in the receipt."""


@dataclass(frozen=True)
class TrailEntry:
    """One action on the request: what, by whom, and when."""

    action: str
    by: str
    """Id of the API key, or `amend`."""
    at: str
    name: str | None = None
    """Name of the API key."""


@dataclass(frozen=True, kw_only=True)
class ReceiptFacts:
    """What reports and receipts state about an erasure in the same form. Nothing in it identifies the person."""

    # descriptions, not docstrings, because other classes extend it
    subject_token: Annotated[str, Field(description="Keyed hash in place of the person's first identifier.")]
    received_at: str
    due_at: str
    extended: bool
    late: bool
    completed_at: str
    trail: Annotated[list[TrailEntry], Field(description="Actions on the request, in order.")]
    found: Annotated[int, Field(description="Number of the person's examples.")]
    statement: str
    alias_tokens: Annotated[
        list[str],
        Field(description="Keyed hashes in place of the person's other identifiers that were searched for."),
    ] = field(default_factory=list)
    near_matches: Annotated[
        int,
        Field(
            description="Number of similar spellings under which there were examples when the request was filed; they "
            "were not erased."
        ),
    ] = 0
    caseless: Annotated[
        bool, Field(description="Whether identifiers are compared without regard to upper and lower case.")
    ] = False
    unsearchable: Annotated[
        list[str], Field(description="Models with examples that have no subject, and could not be searched.")
    ] = field(default_factory=list)
    toward: Annotated[
        list[str],
        Field(description="Models whose regularizer draws the weights toward numbers (`toward`) of unknown origin."),
    ] = field(default_factory=list)
    limits: Annotated[list[str], Field(description="What the receipt does not cover.")] = field(default_factory=list)
    recognised_until: Annotated[
        str | None,
        Field(description="Date until which Amend keeps a keyed hash that recognises the person's data if it returns."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ErasureReport(ReceiptFacts):
    """What was done for one person."""

    models: list[ModelReport]


def report_json(report: ErasureReport) -> dict[str, object]:
    """A report as JSON, as in its receipt."""
    return {**asdict(report), "models": [model_json(model) for model in report.models]}


def model_json(report: ModelReport) -> dict[str, object]:
    """The report of a model as JSON. What was not done, or does not apply to the method, is left out."""
    found: dict[str, object] = {"model": report.model, "examples": report.examples}
    if report.outcome is not None:
        found |= outcome_json(report.outcome)
    if report.evidence is not None:
        found |= evidence_json(report.evidence)
    found |= without_none({"encoder": report.encoder})
    # a deleted model has nothing to audit or to keep
    deleted = report.outcome is None or report.outcome.method is Method.DELETED
    if not deleted:
        found["audit"] = asdict(report.audit) if report.audit else None
    if report.deleted is not None:
        named = {FILES if name == "files" else name: count for name, count in asdict(report.deleted).items()}
        found["deleted"] = without_none(named)
    if report.versions is not None:
        found["versions"] = asdict(report.versions)
    found |= without_none({"checked": report.checked, "database": report.database, "caches": report.caches})
    if not deleted and report.checked is not None:
        found["kept_until"] = report.kept_until
    if report.copies is not None:
        found["copies"] = [asdict(copy) for copy in report.copies]
    return found | without_none({"was_in_use": report.was_in_use, "in_mlflow": report.in_mlflow})


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """How a model forgot, as JSON; a version without a certificate has a null one."""
    found: dict[str, object] = {"method": outcome.method.value, "words": outcome.words}
    found |= without_none({"version": outcome.version, "commitment": outcome.commitment})
    if outcome.method in (Method.ADAPTED, Method.RETRAINED):
        found["certificate"] = without_none(certificate_json(outcome.certificate)) if outcome.certificate else None
    if outcome.compared is not None:
        found["disagreement"] = outcome.compared.disagreement
    return found | without_none({"tolerance": outcome.tolerance})


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def report_from(body: Mapping[str, Any]) -> ErasureReport:
    """Parse the report of a receipt, which may have been written by an earlier release with fewer fields."""
    body = {"subject_token": "", "extended": False, "trail": [], **body}
    facts = {one.name: body[one.name] for one in fields(ReceiptFacts) if one.name in body}
    trail = [TrailEntry(**event) for event in body["trail"]]
    return ErasureReport(**{**facts, "trail": trail}, models=[model_from(model) for model in body["models"]])


def model_from(body: Mapping[str, Any]) -> ModelReport:
    """Parse the report of a model, from a receipt or from the row of a part."""
    deleted = versions = None
    if (counts := body.get("deleted")) is not None:
        deleted = Deleted(counts.get("examples"), counts.get(FILES), counts.get("versions"), counts.get("analyses"))
    if (fates := body.get("versions")) is not None:
        versions = VersionFates(fates["purged"], [KeptVersions(**entry) for entry in fates["stay"]])
    return ModelReport(
        model=body["model"],
        examples=body["examples"],
        outcome=outcome_from(body) if "method" in body else None,
        evidence=evidence_from(body),
        audit=Familiarity(**body["audit"]) if body.get("audit") else None,
        deleted=deleted,
        versions=versions,
        copies=[Copy(**copy) for copy in body["copies"]] if "copies" in body else None,
        **{
            name: body.get(name)
            for name in ("checked", "database", "caches", "kept_until", "was_in_use", "in_mlflow", "encoder")
        },
    )


def outcome_from(body: Mapping[str, Any]) -> Outcome:
    return Outcome(
        Method(body["method"]),
        body.get("words", ""),
        compared=ComparisonSummary(body["disagreement"]) if "disagreement" in body else None,
        certificate=read_certificate(body["certificate"]) if body.get("certificate") else None,
        **{name: body.get(name) for name in ("version", "commitment", "tolerance")},
    )


def read(part: Part) -> ModelReport:
    """The report of a part so far."""
    return model_from({**(part.report or {}), "model": part.model, "examples": part.examples})


def write(part: Part, report: ModelReport) -> None:
    """Store the report of a part."""
    part.report = {name: value for name, value in model_json(report).items() if name not in ("model", "examples")}
