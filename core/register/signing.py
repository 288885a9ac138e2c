"""Signatures of the register: its Ed25519 key, signed heads, and DSSE envelopes.

The private key is in a file that AMEND_SIGNING_KEY_FILE names, never in the database.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from core.clock import now
from core.database import utc_text
from core.errors import Invalid
from core.settings import Settings, load_or_create_secret

LOST = "lost"
"""Value of AMEND_SIGNING_KEY_PREVIOUS_FILE if the previous key no longer exists."""


class Head(TypedDict):
    """A signed head of the register: it commits the signer to the first `size` leaves."""

    size: int
    root: str
    """Root of the Merkle tree, in hexadecimal."""
    time: str
    """Time of the signature."""
    signature: str
    """Ed25519 signature, in Base64."""
    key_id: str
    """First 16 hexadecimal digits of the SHA-256 of the raw public key."""


class Signer:
    """A private key that signs heads and receipts."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self.key = key
        self.public_key = key.public_key()
        self.key_id = key_id_of(self.public_key)
        self.public_pem = self.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def sign(self, data: bytes) -> str:
        return base64.b64encode(self.key.sign(data)).decode()

    def sign_head(self, size: int, root: bytes) -> Head:
        """Sign the root of the tree of the first `size` leaves, now."""
        time = utc_text(now())
        signature = self.sign(head_bytes(size, root.hex(), time))
        return Head(size=size, root=root.hex(), time=time, signature=signature, key_id=self.key_id)


def key_id_of(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def head_bytes(size: int, root: str, time: str) -> bytes:
    """The bytes that the signature of a head covers."""
    return f"amend-register-head-v1\n{size}\n{root}\n{time}\n".encode()


def is_named(key_id: str, public_pem: str) -> bool:
    """Whether a public key has this id: otherwise, somebody exchanged one of the two."""
    try:
        key = load_pem_public_key(public_pem.encode())
    except ValueError:
        return False
    return isinstance(key, Ed25519PublicKey) and key_id_of(key) == key_id


def is_signed(head: Mapping[str, Any], public_pem: str) -> bool:
    """Whether a head was signed with a key."""
    try:
        signed = head_bytes(head["size"], head["root"], head["time"])
        return is_signature(signed, head["signature"], public_pem)
    except KeyError:
        return False


def is_signature(data: bytes, signature: str, public_pem: str) -> bool:
    """Whether data was signed with a key."""
    try:
        key = load_pem_public_key(public_pem.encode())
        if not isinstance(key, Ed25519PublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, which is what a signature of an envelope covers.

    >>> pae("a/b", b"hello")
    b'DSSEv1 3 a/b 5 hello'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def create_key() -> str:
    """A new private key, as PEM (PKCS 8)."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@lru_cache(maxsize=64)
def read_signer(path: Path) -> Signer:
    """The key in a file. Raises Invalid, with a message for operators, if there is none."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise Invalid("settings_invalid", f"AMEND_SIGNING_KEY_FILE: cannot read {path} ({error.strerror}).") from None
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        hint = "Create one with `openssl genpkey -algorithm ed25519`."
        raise Invalid("settings_invalid", f"AMEND_SIGNING_KEY_FILE: {path} is not an Ed25519 key in PEM. {hint}")
    return Signer(key)


def signer_of(settings: Settings) -> Signer:
    """The current key; without the setting, a key in the home folder, which is created on first use."""
    if settings.signing_key_file:
        return read_signer(Path(settings.signing_key_file).expanduser())
    path = settings.folder / "signing.key"
    if not path.exists():
        load_or_create_secret(path, create_key)
    return read_signer(path)


def previous_signer_of(settings: Settings) -> Signer | None:
    """The key before the current one; None if the setting is empty or says that it was lost."""
    name = settings.signing_key_previous_file
    return read_signer(Path(name).expanduser()) if name not in ("", LOST) else None


def configured_keys(settings: Settings) -> dict[str, str]:
    """The public keys whose private keys the settings name, by id: the current one and the one before it."""
    signers = (signer_of(settings), previous_signer_of(settings))
    return {signer.key_id: signer.public_pem for signer in signers if signer is not None}
