"""Salted commitments to the files of versions.

Receipts name a version by its commitment. Once the version is purged and its salt deleted, the commitment no longer
helps anyone to confirm a guess of the deleted weights.
"""

import hashlib
import secrets

from core.tables.versions import Version


def commit_to(version: Version) -> str:
    """The commitment to a version's file. The first call chooses the salt."""
    version.salt = version.salt or secrets.token_bytes(32)
    return hashlib.sha256(version.salt + bytes.fromhex(version.sha256)).hexdigest()
