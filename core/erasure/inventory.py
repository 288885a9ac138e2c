"""The inventory: what an erasure does to a person's data in every table.

A test compares it with the schema, so that a new table cannot be forgotten.
"""

PURGED = {
    "examples": "rows of the person are deleted",
    "pending_examples": "rows of the person are deleted",
    "recorded_predictions": "those for examples of the person, and those of purged versions, are deleted",
    "quality_windows": "predictions of versions trained on the person's data are deleted; rounded metrics stay",
    "drift_reports": "counts are deleted, and computed again without the person's examples; names of columns stay",
    "holdout_samples": "positions of rows in force; drawn again if it contains rows of the person",
    "imports": "weights for the first version; deleted with the person's data, and once that version exists",
    "versions": "versions trained on the person's data are purged: files and metrics are deleted, their cost is kept",
    "erasures": "the keyed hash of the person and the reasons are deleted when it ends, except the reason of a refusal",
    "erasure_events": "actions on a request, with the ids of the API keys",
    "erasure_parts": "positions of the person's examples, that is, numbers of deleted rows",
    "idempotency_records": "response encrypted and request hashed with the caller's own key; deleted after a day",
    "removals": "only counts",
    "changes": "only kinds and positions",
    "models": "nothing about people",
    "jobs": "nothing about people",
    "outbox": "nothing about people",
    "workers": "nothing about people",
    "promotions": "nothing about people",
    "comparisons": "metrics of whole models; those of versions trained on the person's data are deleted",
    "tracking_events": "nothing about people",
    "mutexes": "nothing about people",
    "webhooks": "nothing about people",
    "deliveries": "ids of models, jobs and erasures",
    "keys": "nothing about people",
    "sign_ins": "hashes of random cookies, kept for hours",
    "metadata": "nothing about people",
    "orphan_files": "names of files that are about to be deleted",
    "receipts": "another keyed hash, which identifies the person only to the holder of the secret",
}
"""What an erasure does to the person's data, by table."""
