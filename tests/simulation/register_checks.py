"""Properties of the register after every commit: no receipt without its leaf, no duplicates, consistent heads.

The Merkle tree is computed here by the definition of RFC 6962, from the stored commitments.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from tests.simulation.observed_state import ObservedState, Violation


class RegisterChecks:
    """What a second party would check who keeps every signed head."""

    def __init__(self, state: ObservedState, restored: bool) -> None:
        self.state, self.restored = state, restored
        self.heads: dict[int, str] = {}
        """Roots of all heads that were signed, by their sizes."""

    def check(self) -> None:
        leaves = self.state.rows('SELECT "index", commitment, record FROM register_leaves ORDER BY "index"')
        if [leaf["index"] for leaf in leaves] != list(range(len(leaves))):
            raise Violation("register", "The leaves are not numbered consecutively.")
        self.check_heads([bytes(leaf["commitment"]) for leaf in leaves])
        self.check_receipts([json.loads(leaf["record"]) if leaf["record"] else {} for leaf in leaves])

    def check_heads(self, commitments: list[bytes]) -> None:
        """The newest head is that of the leaves, and extends every head before it."""
        [row] = self.state.rows("SELECT value FROM metadata WHERE name = 'register'")
        if row["value"]:
            head = json.loads(row["value"])
            if self.heads.setdefault(head["size"], head["root"]) != head["root"]:
                raise Violation("register", f"Two heads of size {head['size']} were signed.")
            if head["size"] != len(commitments):
                raise Violation("register", f"The head has size {head['size']}, the register {len(commitments)}.")
        for size, root in self.heads.items():
            if size > len(commitments) or root_of(tuple(commitments[:size])).hex() != root:
                raise Violation("register", f"The register does not extend its head of size {size}.")

    def check_receipts(self, records: list[dict[str, Any]]) -> None:
        completed = {i: record for i, record in enumerate(records) if record.get("kind") == "completed"}
        receipts = self.state.rows("SELECT number, erasure_id, leaf, sha256 FROM receipts ORDER BY number")
        if [receipt["number"] for receipt in receipts] != list(range(1, len(receipts) + 1)):
            raise Violation("register", "The receipts are not numbered consecutively.")
        for receipt in receipts:
            record = completed.pop(receipt["leaf"], {})
            named = (record.get("receipt"), record.get("erasure"), record.get("statement"))
            if named != (receipt["number"], receipt["erasure_id"], receipt["sha256"]):
                raise Violation("receipt without leaf", f"Receipt {receipt['number']}: leaf {receipt['leaf']} {named}.")
        if completed:
            raise Violation("leaf without receipt", f"Leaves {sorted(completed)} complete erasures without a receipt.")
        erasures = [receipt["erasure_id"] for receipt in receipts]
        if len(set(erasures)) < len(erasures) and not self.restored:  # a replay repeats erasures, with a new receipt
            raise Violation("two receipts", "An erasure has two receipts.")


def root_of(commitments: tuple[bytes, ...]) -> bytes:
    if not commitments:
        return hashlib.sha256().digest()
    return subtree(commitments)


@lru_cache(10_000)
def subtree(commitments: tuple[bytes, ...]) -> bytes:
    if len(commitments) == 1:
        return hashlib.sha256(b"\0" + commitments[0]).digest()
    half = 1 << ((len(commitments) - 1).bit_length() - 1)
    return hashlib.sha256(b"\1" + subtree(commitments[:half]) + subtree(commitments[half:])).digest()
