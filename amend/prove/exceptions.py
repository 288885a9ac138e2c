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
        "logs and broker",
        r"^files/(logs/|broker/|up\.log|up\.lock|.*\.alive|.*\.pid)",
        "Logs record times and process ids; the broker's files contain messages with random ids. Neither contains "
        "examples or figures.",
    ),
    Exempt(
        "random ids and keys",
        r"^files/(admin\.key|mlflow\.key|secret|artifacts/database/)|^database/keys/.*/digest|request_id(/value)?$"
        r"|^rest//v1/keys|^database/metadata/store/|^database/webhooks/.*/secret|/model_uuid$|_uuid$"
        r"|/MLmodel/.*/(model_uuid|utc_time_created)",
        "Keys, request ids, MLflow's ids and the identity of the store are random.",
    ),
    Exempt(
        "receipts",
        r"receipts?/|/receipt(/|\?|$)|^database/erasure_parts/.*/report/|^database/erasures/.*/token$"
        r"|^rest//v1/erasures.*/models/\d+/bound$",
        "A receipt contains a keyed hash of the person and describes the version that replaced the old one at its time, "
        "which may have been trained on people who were erased later.",
    ),
    Exempt(
        "times",
        r"(_at|/at|/seconds|_time|_timestamp|_timestamp_ms|/timestamp|_until|/speedup)$|(cost|_cost)/seconds"
        r"|seconds_total|/speedup[,/ ]",
        "Times and durations, and ratios of durations.",
    ),
    Exempt(
        "rounded quality windows",
        r"^database/quality_windows/\d+ \(rounded\)/metrics/|^rest//v1/models/[^/]+/quality\?.*/(champion|frozen|baseline|challenger)/",
        "Rounded so coarsely that no single example can be inferred.",
    ),
    Exempt(
        "rounded figures of purged versions in MLflow",
        r"^mlflow/(metrics|latest_metrics|logged_model_metrics)/.* \(purged version\)/|^mlflow/params/memory_\w+,.*\(purged version\)/",
        "MLflow cannot delete metrics. They are rounded before they are published.",
    ),
)
