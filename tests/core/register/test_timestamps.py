"""Time stamps of an authority for new heads, with `openssl ts` as the authority."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate
from rfc3161_client import VerifierBuilder, decode_timestamp_response
from sqlalchemy import select

from core.database import Database
from core.erasure.bundle import BundleRequest, make_bundle
from core.errors import Unavailable
from core.register.records import canonical
from core.register.timestamps import stamp_newest_head
from core.tables.register import StampedHead
from tests.core.erasure.erasure_helpers import erase_nobody, find_erasure, store_of
from tests.timestamp_authority import serve


def test_new_heads_are_stamped_once_and_are_in_bundles(empty_database: Database, tmp_path: Path) -> None:
    with serve(tmp_path) as authority:
        assert not stamp_newest_head(empty_database, authority.url)
        id = erase_nobody(empty_database)
        authority.broken = True
        with pytest.raises(Unavailable, match="authority"):
            stamp_newest_head(empty_database, authority.url)
        authority.broken = False
        assert stamp_newest_head(empty_database, authority.url)
        assert not stamp_newest_head(empty_database, authority.url)
    with empty_database.read() as session:
        stamped = session.scalars(select(StampedHead)).one()
    root = load_pem_x509_certificate((tmp_path / "root.pem").read_bytes())
    signer = load_pem_x509_certificate((tmp_path / "tsa.pem").read_bytes())
    verifier = VerifierBuilder().add_root_certificate(root).tsa_certificate(signer).build()
    response = decode_timestamp_response(stamped.response)
    verifier.verify(response, hashlib.sha256(canonical(stamped.head).encode()).digest())
    wanted = BundleRequest(lambda model: False)
    content = make_bundle(empty_database, store_of(empty_database), find_erasure(empty_database, id), wanted)
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.read("timestamps/001.tsr") == stamped.response
