"""The secrets of webhooks, and signatures.

A secret is needed for signing, so it is stored encrypted rather than hashed. The encryption key is derived from the
service's secret key, which is not in the database: the database alone does not allow anybody to sign.
"""

import base64
import hashlib
import hmac
import secrets

from cryptography.fernet import Fernet

PREFIX = "whsec_"


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def cipher_of(service_secret: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.digest(service_secret, b"webhooks", hashlib.sha256)))


def encrypt(secret: str, service_secret: bytes) -> bytes:
    return cipher_of(service_secret).encrypt(secret.encode())


def decrypt(stored: bytes, service_secret: bytes) -> str:
    """Decrypt a secret; raises InvalidToken if it was encrypted with another key."""
    return cipher_of(service_secret).decrypt(stored).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a delivery, as Standard Webhooks specifies it.

    >>> secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    >>> sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"
