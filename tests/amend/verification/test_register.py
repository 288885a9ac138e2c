"""Older heads, acknowledgements, rotations of the key, and time stamps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

from amend.verification import BundleError, Result
from tests.amend.verification.builder import Bundle, Log, Signer, assemble, canonical, dump, make_bundle
from tests.amend.verification.conftest import Verify, results
from tests.timestamp_authority import Authority

GREW = "The register only grew since your head"


def with_proof_from(bundle: Bundle, size: int) -> Bundle:
    return bundle.edit("consistency.json", lambda proofs: proofs.append(bundle.log.consistency(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_an_older_head_that_the_register_extends_passes(size: int, verify: Verify) -> None:
    bundle = make_bundle()
    found = verify(with_proof_from(bundle, size), head=bundle.log.head(size))
    assert found.passed
    assert not any("everybody sees the same register" in sentence for sentence in found.unproven)


def test_an_older_head_of_a_rewritten_register_fails(verify: Verify) -> None:
    """The operator, who has the key, rebuilt the register without an entry or with another date."""
    bundle = make_bundle()
    for change in ({"at": "2026-10-01T08:00:00Z"}, {"kind": "refused"}):
        before = Log(records=[dict(record) for record in bundle.log.records])
        before.records[0] |= change
        found = results(verify(with_proof_from(bundle, 2), head=before.head(2)))
        assert found["Your older head"] is Result.PASSED
        assert found[GREW] is Result.FAILED
        same_size = results(verify(bundle, head=before.head()))
        assert same_size[GREW] is Result.FAILED


def test_a_truncated_register_is_not_accepted(verify: Verify) -> None:
    bundle = make_bundle()
    bundle.log.append("filed", "newest")
    assert results(verify(bundle, head=bundle.log.head()))[GREW] is Result.NOT_ESTABLISHED


def test_without_a_proof_from_its_size_an_older_head_establishes_nothing(verify: Verify) -> None:
    bundle = make_bundle()
    found = verify(bundle, head=bundle.log.head(2))
    assert results(found)[GREW] is Result.NOT_ESTABLISHED
    assert any("--from 2" in check.detail for check in found.checks)


def test_an_older_head_of_another_signer_fails(verify: Verify) -> None:
    bundle = make_bundle()
    found = verify(with_proof_from(bundle, 2), head=bundle.log.head(2, Signer(2)))
    assert results(found)["Your older head"] is Result.FAILED


def test_an_acknowledgement_shows_that_the_request_was_not_dropped(verify: Verify) -> None:
    bundle = make_bundle()
    acknowledgement = {**bundle.log.entry(1, 2), "head": bundle.log.head(2)}
    assert verify(with_proof_from(bundle, 2), head=acknowledgement).passed
    dropped = with_proof_from(make_bundle(), 2).edit("entries.json", lambda entries: entries[1:])
    assert results(verify(dropped, head=acknowledgement))["Your acknowledgement"] is Result.FAILED


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"head": 1}', "x" * 100])
def test_a_malformed_head_is_an_error(content: str, verify: Verify) -> None:
    with pytest.raises(BundleError):
        verify(make_bundle(), head=content)


@pytest.mark.parametrize("content", ["", "{}", "-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----\n"])
def test_a_malformed_key_is_an_error(content: str, verify: Verify) -> None:
    with pytest.raises(BundleError):
        verify(make_bundle(), key=content)


def rotated(announcer: Signer | None = None) -> tuple[Bundle, dict[str, Any]]:
    """A receipt that the old key signed, and a newest head that the new key signed."""
    old, new = Signer(1), Signer(3)
    bundle = make_bundle()
    log = bundle.log
    leaf = log.append("key_rotated", None, key_id=new.key_id, public_key=new.pem)
    announced = {"head": log.head(leaf + 1, announcer or old), "rotation": log.entry(leaf)}
    log.append("filed", "latest")
    log.signer = new
    earlier = {"key_id": old.key_id, "public_key": old.pem, "until": leaf, **announced}
    files = assemble(log, bundle.receipt_size, json.loads(bundle.files["receipt.json"]), [1, 3], None)
    key = {**json.loads(files["key.json"]), "earlier": [earlier]}
    bundle.files = {**files, "key.json": dump(key)}
    return with_proof_from(bundle, leaf + 1), key


def test_the_old_key_leads_to_the_new_one(verify: Verify) -> None:
    bundle, _ = rotated()
    found = verify(bundle)
    assert found.passed
    assert results(found)["Change of the signing key"] is Result.PASSED


def test_the_new_key_vouches_for_receipts_of_the_old_one(verify: Verify) -> None:
    bundle, key = rotated()
    assert verify(bundle, key=Signer(3).pem).passed
    assert verify(bundle, key=key).passed


def test_a_rotation_that_the_old_key_did_not_sign_fails(verify: Verify) -> None:
    bundle, _ = rotated(announcer=Signer(3))
    found = results(verify(bundle))
    assert found["Change of the signing key"] is Result.FAILED
    assert found["Newest head of the register"] is Result.FAILED


def test_a_new_key_cannot_start_another_register(verify: Verify) -> None:
    """Without a proof that the register still extends the head with the rotation, the new key is not trusted."""
    bundle, _ = rotated()
    bundle.edit("consistency.json", lambda proofs: proofs[:1])
    found = results(verify(bundle))
    assert found["Change of the signing key"] is Result.NOT_ESTABLISHED
    assert found["Newest head of the register"] is Result.FAILED


def test_a_lost_key_announces_nothing(verify: Verify) -> None:
    bundle, _ = rotated()
    bundle.edit("key.json", lambda key: key["earlier"][0].update(head=None))
    assert results(verify(bundle))["Change of the signing key"] is Result.NOT_ESTABLISHED
    assert verify(bundle, key=Signer(3).pem).passed


def stamp(authority: Authority, head: dict[str, Any]) -> bytes:
    request = TimestampRequestBuilder(data=canonical(head), hash_algorithm=HashAlgorithm.SHA256).build()
    return authority.stamp(request.as_bytes())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_time_stamps_are_verified_with_the_certificate_of_the_authority(authority: Authority, verify: Verify) -> None:
    bundle = make_bundle()
    head = bundle.log.head(bundle.receipt_size)
    stamped, root = stamp(authority, head), authority.folder / "root.pem"
    bundle.files |= {"timestamps/001.tsr": stamped, "timestamps/001.json": dump(head)}
    found = verify(bundle, authority=root)
    assert found.passed
    assert not any("operator's own statement" in sentence for sentence in found.unproven)

    without = verify(bundle)
    assert without.passed
    assert any("no certificate of the authority" in sentence for sentence in without.unproven)

    for forged in (bundle.log.head(), Log(records=bundle.log.records[1:]).head()):
        bundle.files["timestamps/001.json"] = dump(forged)
        assert results(verify(bundle, authority=root))["Time stamp timestamps/001.tsr"] is Result.FAILED


@pytest.mark.parametrize("cut", [0, 1, 40, 400, -1])
def test_damaged_time_stamps_fail(cut: int, authority: Authority, verify: Verify) -> None:
    bundle = make_bundle()
    head = bundle.log.head()
    stamped = stamp(authority, head)
    for damaged in (stamped[:cut], stamped[:cut] + b"\xff" + stamped[cut:][1:]):
        bundle.files |= {"timestamps/001.tsr": damaged, "timestamps/001.json": dump(head)}
        found = verify(bundle, authority=authority.folder / "root.pem")
        assert results(found)["Time stamp timestamps/001.tsr"] is Result.FAILED


def test_time_stamps_of_another_authority_fail(authority: Authority, verify: Verify, tmp_path: Path) -> None:
    bundle, other = make_bundle(), Authority(tmp_path)
    head = bundle.log.head()
    bundle.files |= {"timestamps/001.tsr": stamp(other, head), "timestamps/001.json": dump(head)}
    found = verify(bundle, authority=authority.folder / "root.pem")
    assert results(found)["Time stamp timestamps/001.tsr"] is Result.FAILED
