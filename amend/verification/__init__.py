"""Offline verification of erasure bundles: signatures, register proofs, and a refit of the certified models.

    from amend.verification import verify_bundle

    verification = verify_bundle("bundle.zip", key="register-key.pem", refit=True)
    assert verification.passed

The package computes everything independently of the service: it shares no code with it, and needs no network. It
requires the extra `amend[verify]`.
"""

from amend.verification.findings import BundleError, Check, Result, Verification
from amend.verification.verify import verify_bundle

__all__ = ["BundleError", "Check", "Result", "Verification", "verify_bundle"]
