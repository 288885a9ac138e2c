"""The places at which twins may differ, and why. Everything else must be equal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exempt:
    """A declared exception: all places that match a regular expression."""

    name: str
    pattern: str
    reason: str


EXCEPTIONS = (
    Exempt(
        "logs, broker and process files",
        r"^files/(logs/|broker/|up\.log|up\.lock|.*\.alive|.*\.log$)",
        "Logs record times and process ids; the broker's files contain messages with random ids. They contain neither "
        "examples nor figures.",
    ),
    Exempt(
        "random ids and keys",
        r"^files/(\w+\.key|artifacts/database)|^database/keys/.*/digest|^rest//v1/keys|/key_id$"
        r"|request_id(,.*/value)?$|^database/metadata/store/|_uuid$|^database/webhooks/.*/secret/"
        r"|/MLmodel/\d+$|^database/versions/[^/]+/salt/|/object_id$|^rest//v1/audit\?.*/object$",
        "Keys, request ids, ids of deleted analyses in the audit log, MLflow's ids, the salts of versions and the "
        "identity of the store are random.",
    ),
    Exempt(
        "register and hashes of erased people",
        r"^database/register_(keys|nodes)/|^database/metadata/register/|^rest//v1/register/(head|key)\?"
        r"|^(database/register_leaves|files/artifacts/register)/.*/(commitment|salt|record/(statement|subject_token))"
        r"|^files/artifacts/register/.*/(path|head)/|^database/suppressions/[^/]+/hash$|^database/erasure_subjects/[^/]+/token$|/subject_token$"
        r"|^rest//v1/erasures.*/tokens/\d+$"
        r"|^(database/journal_entries|files/artifacts/journal)/.*(/content/\w+/\d+|/hmac)$",
        "The register contains keyed hashes of erased people, as the receipts do, and commitments with random salts, "
        "signed with a random key. For a while, a keyed hash recognises a person whose data returns, and the journal "
        "has keyed hashes of removed and corrected ids, so that a restore of an older backup can repeat the removals "
        "and corrections.",
    ),
    Exempt(
        "receipts",
        r"receipts?[/?]|/(receipt|bundle)(/|\?|$)|^database/erasure_parts/.*/report/|^database/erasures/.*/token$"
        r"|^rest//v1/erasures.*/models/\d+[^/]*/bound$|^files/artifacts/receipts",
        "A receipt contains a keyed hash of the person and describes the version that replaced the old one at its "
        "time. That version may have been trained on people who were erased later, and is then purged itself.",
    ),
    Exempt(
        "times",
        r"(_at|/at|/seconds|_time|_timestamp|_timestamp_ms|/timestamp|_until|/speedup)$|cost/seconds|/speedup[,/ ]"
        r"|^database/metadata/scheduler/"
        r"|cost_(against_retrain|of_versions)\.svg|/comparison\.html/|^rest//metrics\?|^rest//(healthz|readyz)",
        "Times, durations, ratios of durations, charts of durations and the page that embeds them, and counters of "
        "requests. The other figures of that page are in the table `comparisons`, which is compared.",
    ),
    Exempt(
        "rounded quality windows",
        r"^database/quality_windows/.* \(rounded\)/(metrics/|weight$|heaviest$)"
        r"|^rest//v1/models/[^/]+/quality\?.*/(champion|frozen|baseline|challenger)/",
        "Metrics that were computed when examples arrived, rounded so coarsely that no single example can be inferred. "
        "The database rows of windows that do not depend on an erased example are compared.",
    ),
    Exempt(
        "rounded figures of the promotion gate",
        r"^(database/versions|rest//v1/models/[^/]+/versions)[/?].*/gate/confirmed/carried$",
        "How much worse a version is than a purged one that a person had confirmed, rounded like quality windows. "
        "Without it, many small deteriorations could add up unnoticed.",
    ),
    Exempt(
        "rounded figures of purged versions in MLflow",
        r"^mlflow/(metrics|latest_metrics|logged_model_metrics)/(.* \(purged version\)/|#$)"
        r"|^mlflow/params/memory_\w+,.* \(purged version\)/|^mlflow/(tags|model_versions)/.* \(purged version\)/"
        r"|^mlflow/(params|tags)/#$|^mlflow/\w*metrics/.*cost/\w+_total,|/adapted_against_retrained\.svg/",
        "MLflow cannot delete metrics, parameters and descriptions. Figures are rounded before they are published. The "
        "version that replaces others is published before they are purged, with a chart of their rounded metrics and "
        "the sum of their rounded costs.",
    ),
    Exempt(
        "rounded figures of analyses in MLflow",
        r"^mlflow/(latest_)?metrics/<runs \d+>,metrics/",
        "Results of analyses are deleted with the person. MLflow keeps their aggregates, which "
        "are rounded before they are published, like metrics of versions.",
    ),
    Exempt(
        "decisions about purged versions",
        r" \(purged version\)/(kind|method|parent|previous|message|from_position|name|by|#)$|/(parent|previous)$"
        r"|^database/promotions/(#$|.*/id$|.* \(purged version\)/)|^database/sqlite_sequence/|/promotions\?"
        r"|^mlflow/(params|runs|model_version_tags|logged_model_tags|logged_models)/.* \(purged version\)/",
        "The method that made a version, and its promotion, were decided while the erased examples were present. The "
        "history of these decisions is kept; their figures are not.",
    ),
)
