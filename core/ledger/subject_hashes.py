"""Keyed hashes of subjects, the only form in which the service stores who an example is about."""

import hmac
import unicodedata
from collections.abc import Sequence


def subject_hash(subject: str, secret: bytes, caseless: bool = False) -> bytes:
    """The keyed hash of a subject, which is the only form in which it is stored.

    Subjects that are canonically equivalent in Unicode have the same hash. With `caseless`, so have those that differ
    only in case, width and the like (Unicode compatibility caseless matching).

    >>> subject_hash("Jos\u00e9 ", b"key") == subject_hash("Jose\u0301", b"key")
    True
    >>> subject_hash("Stra\u00dfe \uff11", b"key", caseless=True) == subject_hash("STRASSE 1", b"key", caseless=True)
    True
    """
    normalized = unicodedata.normalize("NFC", subject)
    if caseless:
        for _ in range(2):  # case folding can denormalize text, and normalizing can undo the folding
            normalized = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", normalized).casefold())
    return hmac.digest(secret, b"subject:" + normalized.strip().encode(), "sha256")


def subject_hashes(subjects: Sequence[str | None], secret: bytes, caseless: bool) -> list[bytes | None]:
    """One hash for each subject; repeated subjects are hashed once."""
    known: dict[str | None, bytes | None]
    known = {s: subject_hash(s, secret, caseless) for s in set(subjects) if s is not None}
    known[None] = None
    return [known[s] for s in subjects]
