"""Forgeries of bundles that an operator or a third party could try, with a manifest that matches the forgery."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from sklearn.linear_model import Ridge

from amend.verification import Result
from tests.amend.verification import models
from tests.amend.verification.builder import (
    Bundle,
    Log,
    Model,
    Signer,
    assemble,
    dump,
    make_bundle,
    manifest_of,
    statement_of,
)
from tests.amend.verification.conftest import Verify, results

ANOTHER = "00000000-0000-4000-8000-000000000000"


@cache
def made() -> Bundle:
    return make_bundle(models.bernoulli())


def fresh() -> Bundle:
    return Bundle(made().log, dict(made().files), made().receipt_size)


def scalars(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers, strings and nulls in a JSON value."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from scalars(inner, (*path, name))
    else:
        yield path


def alter(value: Any) -> Any:
    match value:
        case int() | float():
            return value + 1
        case str():
            return ("1" if value[:1] != "1" else "2") + value[1:]
    return "something"


SIGNED = [name for name in made().files if name.endswith(".json") and name != "key.json"]
PLACES = [(name, path) for name in SIGNED for path in scalars(json.loads(made().files[name]))]


def test_an_unmodified_bundle_passes(verify: Verify) -> None:
    found = verify(fresh(), refit=True)
    assert found.passed
    assert len(found.checks) == 11


@pytest.mark.parametrize(("name", "path"), PLACES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_every_altered_value_of_a_document_is_detected(name: str, path: tuple[Any, ...], verify: Verify) -> None:
    bundle = fresh()
    value = json.loads(bundle.files[name])
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = alter(inner[path[-1]])
    bundle.files[name] = dump(value)
    assert not verify(bundle, refit=True).passed


@pytest.mark.parametrize("name", ["versions/churn.safetensors", "rows/churn.safetensors"])
@pytest.mark.parametrize("place", [0, 9, 300, 700, 2000, -1])
def test_every_altered_byte_of_a_tensor_file_is_detected(name: str, place: int, verify: Verify) -> None:
    bundle = fresh()
    content = bytearray(bundle.files[name])
    content[place if place < len(content) else -2] ^= 1
    bundle.files[name] = bytes(content)
    assert not verify(bundle, refit=True).passed


@pytest.mark.parametrize("name", [*made().files, "manifest.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_every_altered_byte_is_detected_by_the_manifest(name: str, share: float, verify: Verify) -> None:
    bundle = fresh()
    bundle.files["manifest.json"] = manifest_of(bundle.files)
    content = bytearray(bundle.files[name])
    content[int(share * len(content))] ^= 4
    bundle.files[name] = bytes(content)
    assert not verify(bundle, manifest=False).passed


@pytest.mark.parametrize("name", [name for name in made().files if name != "key.json"])
def test_every_missing_file_is_detected(name: str, verify: Verify) -> None:
    bundle = fresh()
    bundle.files["manifest.json"] = manifest_of(bundle.files)
    del bundle.files[name]
    assert not verify(bundle, manifest=False).passed
    if not name.startswith("versions/churn.json"):  # a version that was purged is not in a bundle
        assert not verify(bundle, refit=True).passed
    else:
        assert any("model/churn/version/7" in sentence for sentence in verify(bundle).unproven)


def test_an_added_file_is_detected(verify: Verify) -> None:
    bundle = fresh()
    bundle.files["manifest.json"] = manifest_of(bundle.files)
    bundle.files["notes.txt"] = b"This receipt is genuine."
    assert not verify(bundle, manifest=False).passed
    extra = fresh()
    extra.files["versions/other.json"] = extra.files["versions/churn.json"].replace(b'"churn"', b'"other"')
    assert not verify(extra).passed


def test_without_a_key_nothing_is_established(verify: Verify) -> None:
    found = verify(fresh(), key=None)
    assert not found.passed
    assert results(found)["Newest head of the register"] is Result.NOT_ESTABLISHED
    assert results(found)["Receipt"] is Result.NOT_ESTABLISHED


def test_a_bundle_signed_with_another_key_fails(verify: Verify) -> None:
    forged = make_bundle(models.bernoulli(), Log(Signer(2)))
    assert verify(forged, key=Signer(2).pem).passed
    found = results(verify(forged))
    assert found["Newest head of the register"] is Result.FAILED
    assert found["Receipt"] is Result.FAILED
    # the forger claims the other key's id
    for name in ("head.json", "receipt.json", "key.json"):
        forged.files[name] = forged.files[name].replace(Signer(2).key_id.encode(), Signer(1).key_id.encode())
    assert not verify(forged).passed


def test_a_receipt_that_is_rewritten_by_the_key_holder_fails(verify: Verify) -> None:
    """Rewriting the last receipt was unnoticed when receipts were only chained."""
    bundle = fresh()
    envelope = json.loads(bundle.files["receipt.json"])
    payload = base64.b64decode(envelope["payload"]).replace(b'"number":1', b'"number":9')
    bundle.files["receipt.json"] = dump({**envelope, **Signer(1).envelope(payload)})
    found = results(verify(bundle))
    assert found["Receipt"] is Result.PASSED
    assert found["Receipt is in the register"] is Result.FAILED


def test_a_receipt_of_another_erasure_fails(verify: Verify) -> None:
    bundle, other = fresh(), make_bundle(models.bernoulli(), erasure=ANOTHER)
    bundle.files["receipt.json"] = other.files["receipt.json"]
    assert results(verify(bundle))["Receipt is about this request"] is Result.FAILED
    # the complete bundle of another erasure under this id
    assert not verify(other).passed


def test_a_statement_for_another_filing_fails(verify: Verify) -> None:
    """A receipt for a request that was filed later, to hide that it was late."""
    log = Log()
    filed, again = log.append("filed"), log.append("filed", ANOTHER)
    payload = statement_of(log.commitments()[again].hex(), None)
    completed = log.append("completed", statement=sha256(payload).hexdigest())
    envelope = {**log.signer.envelope(payload), "register": {**log.entry(completed), "head": log.head()}}
    bundle = Bundle(log, assemble(log, 3, envelope, [filed, completed], None), 3)
    assert results(verify(bundle))["Receipt is about this request"] is Result.FAILED


def test_a_statement_that_the_leaf_does_not_name_fails(verify: Verify) -> None:
    log = Log()
    filed = log.append("filed")
    payload = statement_of(log.commitments()[filed].hex(), None)
    completed = log.append("completed", statement="0" * 64)
    envelope = {**log.signer.envelope(payload), "register": {**log.entry(completed), "head": log.head()}}
    bundle = Bundle(log, assemble(log, 2, envelope, [filed, completed], None), 2)
    assert results(verify(bundle))["Receipt is in the register"] is Result.FAILED


def test_a_removed_receipt_is_detected_by_its_entry(verify: Verify) -> None:
    bundle = fresh()
    del bundle.files["receipt.json"]
    assert results(verify(bundle))["Receipt"] is Result.FAILED


def test_an_open_request_proves_that_it_was_filed(verify: Verify) -> None:
    bundle = fresh()
    del bundle.files["receipt.json"]
    bundle.edit("entries.json", lambda entries: entries[:1])
    found = verify(bundle)
    assert found.passed
    assert any("has no receipt" in sentence for sentence in found.unproven)


def test_entries_that_were_left_out_are_not_noticed_and_the_output_says_so(verify: Verify) -> None:
    """The operator presents an erasure that was completed as if nothing had been decided yet."""
    bundle = fresh()
    del bundle.files["receipt.json"]
    bundle.edit("entries.json", lambda entries: entries[:1])
    found = verify(bundle)
    assert found.passed
    assert any("could have left some out" in sentence for sentence in found.unproven)


def test_entries_in_another_order_are_shown_in_that_of_the_register(verify: Verify) -> None:
    found = verify(fresh().edit("entries.json", lambda entries: entries[::-1]))
    [details] = [check.detail for check in found.checks if check.what == "Entries of the request"]
    assert details == "filed, completed"


def test_receipts_for_other_payload_types_fail(verify: Verify) -> None:
    bundle = fresh()
    envelope = json.loads(bundle.files["receipt.json"])
    payload = base64.b64decode(envelope["payload"])
    bundle.files["receipt.json"] = dump({**envelope, **Signer(1).envelope(payload, "text/plain")})
    assert not verify(bundle).passed


def test_expired_records_still_prove_their_existence(verify: Verify) -> None:
    bundle = fresh()
    bundle.files["entries.json"] = dump([bundle.log.entry(1, expired=True), bundle.log.entry(3, expired=True)])
    found = verify(bundle)
    assert found.passed
    assert any("entries 1, 3" in sentence for sentence in found.unproven)
    # without its record, the leaf no longer names the statement
    bundle.edit("receipt.json", lambda receipt: receipt["register"].update(record=None, salt=None))
    assert results(verify(bundle))["Receipt is in the register"] is Result.NOT_ESTABLISHED


class WithoutRows(Model):
    """A model whose receipt signs neither the objective nor the rows, as receipts of earlier releases."""

    def report(self) -> dict[str, Any]:
        return {name: value for name, value in super().report().items() if name not in ("objective", "rows")}


def split_last_row(model: Model) -> Model:
    """The same weights and the same objective, with other rows: two copies of the last row with half its weight."""
    order = [*range(len(model.targets)), -1]
    weights = model.sample_weights[order].copy()
    weights[-2:] /= 2
    return replace(model, features=model.features[order], targets=model.targets[order], sample_weights=weights)


@pytest.mark.parametrize(("kind", "expected"), [(Model, Result.FAILED), (WithoutRows, Result.PASSED)])
def test_rows_exchanged_for_others_with_the_same_minimum_fail_if_the_receipt_signs_them(
    kind: type[Model], expected: Result, verify: Verify
) -> None:
    honest = kind(**vars(models.bernoulli()))
    bundle = make_bundle(honest)
    assert verify(bundle, refit=True).passed
    bundle.files |= split_last_row(honest).files()
    found = verify(bundle, refit=True)
    assert results(found)["Rows of model churn, version 7"] is expected
    assert found.passed == (expected is Result.PASSED)
    if expected is Result.PASSED:  # the distance is right: only a signature shows that the rows were exchanged
        assert any("stands by the objective and the number and the Merkle root" in words for words in found.unproven)


@pytest.mark.parametrize("change", [{"family": "squared_hinge"}, {"toward": "w"}, {"delta": "w"}, {"threshold": 1.0}])
def test_another_objective_than_the_signed_one_fails(change: dict[str, Any], verify: Verify) -> None:
    bundle = fresh().edit("versions/churn.json", lambda fields: fields["objective"].update(change))
    assert results(verify(bundle, refit=True))["Objective of model churn, version 7"] is Result.FAILED


@pytest.mark.parametrize("names", [("objective",), ("objective", "certificate"), ("objective", "certificate", "rows")])
def test_the_certified_distance_of_a_receipt_cannot_be_hidden(names: tuple[str, ...], verify: Verify) -> None:
    bundle = fresh().edit("versions/churn.json", lambda fields: fields.update(dict.fromkeys(names)))
    assert not any("no distance was certified" in words for words in verify(bundle).unproven)
    assert not verify(bundle, refit=True).passed


def test_rows_that_the_operator_chose_are_believed(verify: Verify) -> None:
    """A limit that the output states: whoever signs can leave rows out, and fit the weights to the others."""
    some = slice(0, models.ROWS // 2)
    x, score, weights = (part[some] for part in models.make_rows(2))
    fit = Ridge(alpha=2.0, solver="cholesky").fit(x, score, weights)
    w = models.stack(fit.coef_, fit.intercept_)
    chosen = Model(w, models.free_bias(2.0), models.with_constant(x), score, weights, "gaussian")
    found = verify(make_bundle(chosen), refit=True)
    assert found.passed
    assert any("That the rows in the bundle are all retained rows" in words for words in found.unproven)
