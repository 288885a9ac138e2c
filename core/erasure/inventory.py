"""The inventory: what an erasure does to a person's data in every table.

A test compares it with the schema, so that a new table cannot be forgotten.
"""

from __future__ import annotations

PURGED = {
    "examples": "rows of the person are deleted",
    "holdout_samples": "positions of rows in force; made anew, should it name one of the person's",
    "imports": "weights that wait to become the first version; deleted with the person, and when it is made",
    "versions": "those that knew the person are purged: files and figures deleted, what they cost stays",
    "erasures": "the keyed hash of the person and the reasons are deleted when it ends; why one was refused stays",
    "erasure_events": "who did what about a request, by the id of their key",
    "erasure_parts": "positions of the person's examples, which are numbers of rows that are gone",
    "answers": "encrypted, and the request hashed, under the caller's own key; deleted after a day",
    "removals": "counts alone",
    "changes": "kinds and positions alone",
    "models": "nothing about people",
    "jobs": "nothing about people",
    "outbox": "nothing about people",
    "workers": "nothing about people",
    "promotions": "nothing about people",
    "comparisons": "figures of whole models; those of versions that knew the person are deleted",
    "entries": "nothing about people",
    "leases": "nothing about people",
    "webhooks": "nothing about people",
    "deliveries": "ids of models, jobs and erasures",
    "keys": "nothing about people",
    "sign_ins": "hashes of random cookies, for hours",
    "marks": "nothing about people",
    "litter": "names of files that are about to go",
    "receipts": "another keyed hash, which tells the person only to who has the secret",
}
"""Table -> what is done to the person's data in it."""
