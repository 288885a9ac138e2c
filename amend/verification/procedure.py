"""The order of the checks of a bundle, from the manifest to the refit."""

from pathlib import Path
from typing import Any

from amend.verification import unproven
from amend.verification.bundle import MAX_DOCUMENT_BYTES, Bundle, check_manifest
from amend.verification.documents import Document, parse
from amend.verification.findings import BundleError, Refuted, Undecided, Verification
from amend.verification.keys import KeyRing, earlier_keys, keys_in, read_trusted_keys
from amend.verification.model_checks import (
    Version,
    check_certificate,
    check_refit,
    check_rows,
    check_weights,
    read_parameters,
    read_version,
)
from amend.verification.receipt import Statement, completes, read_statement, verify_envelope, verify_registration
from amend.verification.register import ConsistencyProofs, Entry, Head, follow_rotation, read_entries, read_entry
from amend.verification.timestamps import read_certificates, verify_timestamp


class Procedure:
    """The verification of one bundle."""

    def __init__(
        self, path: Path, key: Path | None, older_head: Path | None, authority: Path | None, refit: bool
    ) -> None:
        self.path, self.refit = path, refit
        self.ring = KeyRing({} if key is None else read_trusted_keys(key))
        self.older = None if older_head is None else read_json_file(older_head)
        self.certificates = None if authority is None else read_certificates(authority)
        self.found = Verification()
        self.refitted = 0

    def run(self) -> Verification:
        with Bundle(self.path) as self.bundle:
            erasure = self.found.check("Files of the bundle", "SHA-256 against manifest.json", self.check_files)
            if erasure is not None:
                self.check_register(erasure)
        return self.found

    def check_files(self) -> tuple[str, str]:
        return check_manifest(self.bundle)

    def check_register(self, erasure: str) -> None:
        """Check the newest head, and everything that hangs on it."""
        found = self.found
        try:
            head = Head.read(self.bundle.document("head.json"))
            proofs = ConsistencyProofs(as_list(self.bundle.json("consistency.json")), head)
            self.follow_rotations(proofs)
        except Refuted as problem:
            found.reject("Documents of the register", "format", problem)
            return
        signed = found.check("Newest head of the register", "Ed25519 signature", lambda: (True, head.verify(self.ring)))
        entries = found.check(
            "Entries of the request", "Merkle inclusion in the newest head", lambda: self.check_entries(head, erasure)
        )
        if self.older is not None:
            self.check_older_head(self.older, proofs, entries)
        self.check_timestamps(proofs)
        statement = None
        if entries is not None:
            statement = self.check_receipt(erasure, entries, proofs, signed is not None)
            unproven.add_expired(found, entries)
        if statement is not None:
            self.check_versions(statement)
        unproven.add_general(found, statement, self.refitted, self.older is not None)

    def follow_rotations(self, proofs: ConsistencyProofs) -> None:
        """Extend the trusted keys along announced rotations, oldest first."""
        if "key.json" not in self.bundle:
            return
        document = self.bundle.document("key.json")
        self.ring.listed = keys_in(document)
        for earlier in earlier_keys(document):
            if earlier.text("key_id") in self.ring.trusted:
                self.found.check(
                    "Change of the signing key",
                    "entry in a head signed with the old key, which the newest head extends",
                    lambda earlier=earlier: (True, follow_rotation(self.ring, earlier, proofs)),  # type: ignore[misc]
                )

    def check_entries(self, head: Head, erasure: str) -> tuple[list[Entry], str]:
        entries = read_entries(self.bundle.json("entries.json"), head, erasure)
        kinds = ", ".join(str(entry.kind or "expired") for entry in entries)
        return entries, kinds

    def check_older_head(self, older: Document, proofs: ConsistencyProofs, entries: list[Entry] | None) -> None:
        """Check that the register extends a head that the verifier kept, or the head of an acknowledgement."""
        try:
            head = Head.read(older.inner("head") if "head" in older else older)
        except Refuted as problem:
            raise BundleError(str(problem)) from None
        self.found.check("Your older head", "Ed25519 signature", lambda: (True, head.verify(self.ring)))
        self.found.check(
            "The register only grew since your head", "Merkle consistency", lambda: (True, proofs.verify(head))
        )
        if "head" in older:
            self.found.check(
                "Your acknowledgement", "Merkle inclusion", lambda: (True, check_acknowledgement(older, head, entries))
            )

    def check_timestamps(self, proofs: ConsistencyProofs) -> None:
        names = self.bundle.names("timestamps/", ".tsr")
        certificates = self.certificates
        if certificates is None:
            unproven.add_times(self.found, bool(names))
            return
        if not names:
            self.found.reject("Time stamps", "RFC 3161", Undecided("The bundle has no time stamps."))

        def check(name: str) -> tuple[bool, str]:
            fields = self.bundle.document(name.removesuffix(".tsr") + ".json")
            head = Head.read(fields)
            time = verify_timestamp(self.bundle.read(name), fields, certificates)
            return True, f"{head.verify(self.ring, covered=True)}; {proofs.verify(head)}; seen at {time}"

        for name in names:
            self.found.check(
                f"Time stamp {name}",
                "RFC 3161 signature of the authority; Merkle consistency",
                lambda name=name: check(name),  # type: ignore[misc]
            )

    def check_receipt(
        self, erasure: str, entries: list[Entry], proofs: ConsistencyProofs, signed: bool
    ) -> Statement | None:
        """Check the receipt; None if there is none, or if its statement cannot be read."""
        found = self.found
        if "receipt.json" not in self.bundle:
            if any(entry.kind == "completed" for entry in entries):
                problem = Refuted("The register has an entry for the completed erasure, but the bundle has no receipt.")
                found.reject("Receipt", "presence", problem)
            else:
                found.unproven.append(unproven.OPEN)
            return None
        statement = found.check(
            "Receipt is about this request",
            "in-toto statement; digest of the entry that filed the request",
            lambda: self.read_receipt(erasure, entries),
        )
        if statement is None:
            return None
        envelope = self.bundle.document("receipt.json")
        covered = signed and any(completes(entry, statement) for entry in entries)
        found.check("Receipt", "DSSE, Ed25519 signature", lambda: (True, verify_envelope(envelope, self.ring, covered)))

        def check_registration() -> tuple[bool, str]:
            entry, head = verify_registration(envelope, statement, erasure)
            if all(entry.commitment != other.commitment or entry.leaf != other.leaf for other in entries):
                raise Refuted(f"entries.json does not contain entry {entry.leaf}, which completed the erasure.")
            grown = proofs.verify(head)
            head.verify(self.ring, covered=signed)
            return True, f"entry {entry.leaf}; {grown}"

        means = "Merkle inclusion when it was issued; consistency with the newest head"
        found.check("Receipt is in the register", means, check_registration)
        return statement

    def read_receipt(self, erasure: str, entries: list[Entry]) -> tuple[Statement, str]:
        statement = read_statement(self.bundle.document("receipt.json"), erasure)
        filed = [entry for entry in entries if entry.commitment == statement.subjects[f"erasure/{erasure}"]]
        if not filed or filed[0].kind not in ("filed", None):
            raise Refuted("The receipt does not refer to the entry that filed this request.")
        return statement, f"filed in entry {filed[0].leaf}"

    def check_versions(self, statement: Statement) -> None:
        for name in self.bundle.names("versions/", ".json"):
            try:
                version = read_version(self.bundle, name, statement)
            except Refuted as problem:
                self.found.reject(f"Description in {name}", "format", problem)
                continue
            self.check_version(version, statement)
        if self.refit and not self.refitted:
            self.found.reject("Refit", "scipy", Undecided("The bundle has no model with a certified distance."))

    def check_version(self, version: Version, statement: Statement) -> None:
        found, bundle, title = self.found, self.bundle, version.title
        weights = found.check(
            f"Weights of {title}",
            "salted SHA-256 in the receipt",
            lambda: (True, check_weights(bundle, version, statement)),
        )
        if not version.certified:
            found.unproven.append(unproven.NO_DISTANCE.format(title))
            return
        bound = found.check(
            f"Certificate of {title}", "equality with the signed receipt", lambda: check_certificate(version)
        )
        if not self.refit:
            return
        self.refitted += 1
        if weights is None or bound is None:
            return
        parameters = found.check(
            f"Objective of {title}",
            "comparison with the signed receipt",
            lambda: read_parameters(bundle, version),
        )
        if parameters is None:
            return
        columns = parameters.weights.shape[1]
        rows = found.check(
            f"Rows of {title}", "Merkle root of the salted rows", lambda: check_rows(bundle, version, columns)
        )
        if rows is not None:
            found.check(
                f"Distance of {title}",
                "refit of the stated objective with scipy, from zero",
                lambda: (True, check_refit(version, parameters, rows, bound)),
            )
        unproven.add_unsigned(found, version)


def check_acknowledgement(older: Document, head: Head, entries: list[Entry] | None) -> str:
    """Check that an acknowledged entry was in the register, and is among the entries of the request."""
    entry = read_entry(older, head)
    if entries is not None and all(other.leaf != entry.leaf for other in entries):
        raise Refuted(f"Entry {entry.leaf}, which acknowledges your request, is not among the entries of the bundle.")
    return f"entry {entry.leaf}"


def read_json_file(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DOCUMENT_BYTES)
    except OSError as error:
        raise BundleError(f"Cannot read {path}: {error.strerror}.") from None
    try:
        return Document(parse(content, str(path)), str(path))
    except Refuted as problem:
        raise BundleError(str(problem)) from None


def as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refuted("consistency.json must be a list.")
    return value
