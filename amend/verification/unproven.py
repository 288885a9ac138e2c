"""What a verification does not prove, in plain words. The limits are printed next to the results."""

from amend.verification.findings import Verification
from amend.verification.model_checks import Version
from amend.verification.receipt import Statement
from amend.verification.register import Entry

OPEN = (
    "That anything was erased: the bundle has no receipt. It shows only that the request was filed, and the decisions "
    "in its entries."
)
ENTRIES = (
    "That these are all entries about the request: whoever made the bundle could have left some out, such as a later "
    "decision."
)
NO_DISTANCE = (
    "How close {} is to a model that was trained without the person's data: no distance was certified, because it is "
    "not a linear model or because its examples do not allow a bound."
)
FOUND = (
    "That every example of the person was found. The receipt states which identifier was searched for; data under "
    "another identifier, in backups or in copies outside the service were not examined."
)
REFIT_NOT_RUN = (
    "That the weights in the bundle minimise the stated objective: no refit was run (--refit, with a bundle that "
    "contains the retained rows)."
)
ROWS = (
    "That the rows in the bundle are all retained rows, or that none of them belongs to the person: rows carry no "
    "names. The refit shows only that the weights follow from these rows."
)
SERVING = "That the version in this bundle is the one that serves predictions."
SAME_FOR_ALL = (
    "That everybody sees the same register. Keep signed heads, and compare later bundles with them (--head) or with "
    "heads that others keep."
)


def add_general(found: Verification, statement: Statement | None, refitted: int, older: bool) -> None:
    """The limits that depend on which checks were run."""
    found.unproven.append(ENTRIES)
    if statement is not None:
        found.unproven.append(FOUND)
        named = [name for name in statement.subjects if name.startswith("model/")]
        described = {check.what for check in found.checks}
        for name in named:
            _, model, _, version = (*name.split("/"), "", "", "")[:4]
            if f"Weights of model {model}, version {version}" not in described:
                found.unproven.append(f"Anything about the weights of {name}: the bundle does not contain them.")
        if named:
            found.unproven += [ROWS if refitted else REFIT_NOT_RUN, SERVING]
    if not older:
        found.unproven.append(SAME_FOR_ALL)


def add_expired(found: Verification, entries: list[Entry]) -> None:
    expired = [entry.leaf for entry in entries if entry.record is None]
    if expired:
        named = ", ".join(map(str, expired))
        found.unproven.append(f"What entries {named} say: their records have expired. Only their existence was proven.")


def add_times(found: Verification, stamped: bool) -> None:
    """The limits of times if no time stamp was verified."""
    reason = (
        "the bundle has time stamps, but no certificate of the authority was supplied (--authority)"
        if stamped
        else "the bundle has no time stamps by a third party"
    )
    found.unproven.append(f"When the heads were signed. Their times are the operator's own statement: {reason}.")


def add_unsigned(found: Verification, version: Version) -> None:
    """Parts of the description that the operator did not sign."""
    names = {"objective": "the objective", "rows": "the number and the Merkle root of the rows"}
    unsigned = [words for name, words in names.items() if version.signed_part(name) is None]
    if unsigned:
        found.unproven.append(
            f"That the operator stands by {' and '.join(unsigned)} of {version.title}: the bundle states them, but the "
            "signed receipt does not."
        )
