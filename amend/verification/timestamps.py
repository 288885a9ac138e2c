"""RFC 3161 time stamps of heads, verified against certificates of an authority that the verifier supplies."""

import hashlib
from pathlib import Path

from cryptography.x509 import Certificate, load_pem_x509_certificates
from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

from amend.verification.documents import Document, canonical
from amend.verification.findings import BundleError, Refuted


def read_certificates(path: Path) -> list[Certificate]:
    """The certificates in a PEM file: self-signed ones are roots, the others intermediates."""
    try:
        return load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise BundleError(f"Cannot read the certificate {path}: {error.strerror}.") from None
    except ValueError:
        raise BundleError(f"{path} is not a certificate in PEM format.") from None


def verify_timestamp(response: bytes, head: Document, certificates: list[Certificate]) -> str:
    """Verify that an authority saw this head, and return the time that the authority states."""
    roots = [one for one in certificates if one.issuer == one.subject] or certificates
    intermediates = [one for one in certificates if one not in roots]
    try:
        decoded = decode_timestamp_response(response)
        verifier = VerifierBuilder(roots=roots, intermediates=intermediates).build()
        verifier.verify(decoded, hashlib.sha256(canonical(head.fields, head.where)).digest())
        return f"{decoded.tst_info.gen_time:%Y-%m-%d %H:%M:%S}Z"
    except (VerificationError, ValueError, TypeError) as error:
        raise Refuted(f"The time stamp of {head.where} is not valid: {error}.") from None
