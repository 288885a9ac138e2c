"""Ed25519 keys of a register: those that the verifier supplies, and those that a chain of rotations leads to."""

import hashlib
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from amend.verification.documents import Document, parse
from amend.verification.findings import BundleError, Refuted, Undecided

KEY_ID_DIGITS = 16
NO_KEY = (
    "No key was supplied. Use --key with a public key that you received from the operator in another way than "
    "this bundle."
)


class KeyRing:
    """Keys by id. Signatures count if they are made with a trusted key."""

    def __init__(self, trusted: dict[str, Ed25519PublicKey]) -> None:
        self.trusted = trusted
        self.listed: dict[str, Ed25519PublicKey] = {}
        """Keys that only the bundle names."""

    def verify(self, key_id: str, signature: bytes, message: bytes, what: str, covered: bool = False) -> str:
        """Verify a signature and describe the key.

        `covered` says that a head signed with a trusted key commits to the message. Then a signature with an earlier
        key, which only the bundle names, is accepted as well: the trusted key vouches for the content.
        """
        if not self.trusted:
            raise Undecided(NO_KEY)
        key = self.trusted.get(key_id)
        earlier = key is None and covered
        if earlier:
            key = self.listed.get(key_id)
        if key is None:
            known = ", ".join(self.trusted)
            raise Refuted(f"{what} is signed with the key {key_id}, which is not a supplied key ({known}).")
        try:
            key.verify(signature, message)
        except InvalidSignature:
            raise Refuted(f"The signature of {what} does not match its content.") from None
        return f"key {key_id}" + (", an earlier key; a head signed with your key covers the content" if earlier else "")


def key_id_of(key: Ed25519PublicKey) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the raw public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:KEY_ID_DIGITS]


def load_public_key(pem: str, where: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise Refuted(f"{where} is not a public key in PEM format.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise Refuted(f"{where} is not an Ed25519 key.")
    return key


def read_trusted_keys(path: Path) -> dict[str, Ed25519PublicKey]:
    """The keys in a file: one PEM, or the response of ``GET /v1/register/key`` with its earlier keys."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"Cannot read the key {path}: {error.strerror}.") from None
    try:
        if content.lstrip().startswith(b"{"):
            return keys_in(Document(parse(content, str(path)), str(path)))
        key = load_public_key(content.decode("ascii", "replace"), str(path))
    except Refuted as problem:
        raise BundleError(str(problem)) from None
    return {key_id_of(key): key}


def keys_in(document: Document) -> dict[str, Ed25519PublicKey]:
    """The keys in a response of ``GET /v1/register/key``, the current one and earlier ones."""
    earlier = document.items("earlier") if "earlier" in document else []
    return dict(read_key(Document(one, document.where)) for one in [document.fields, *earlier])


def read_key(fields: Document) -> tuple[str, Ed25519PublicKey]:
    """A key with its id, which must match it."""
    key = load_public_key(fields.text("public_key"), f"{fields.where}: `public_key`")
    if fields.text("key_id") != key_id_of(key):
        raise Refuted(f"{fields.where}: the key {fields.text('key_id')} has the id {key_id_of(key)}.")
    return key_id_of(key), key


def earlier_keys(document: Document) -> list[Document]:
    """The earlier keys in ``key.json``, each with the head and the entry that announce its successor."""
    found: list[Any] = document.items("earlier") if "earlier" in document else []
    return [Document(one, f"{document.where}: `earlier`") for one in found]
