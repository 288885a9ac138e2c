"""The register over REST: acknowledgements, heads, proofs, keys, envelopes, and their verification."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from core.erasure import receipts
from core.tables.erasures import Receipt
from core.versions.store import Store
from tests.service.erasure_helpers import ask, erase_nobody, open_erasure, somebody
from tests.service.expect import refused
from tests.stack import Stack


def head_of(api: httpx.Client) -> dict[str, Any]:
    head: dict[str, Any] = api.get("/v1/register/head").raise_for_status().json()
    return head


def key_of(api: httpx.Client) -> Ed25519PublicKey:
    key = load_pem_public_key(api.get("/v1/register/key").raise_for_status().json()["public_key"].encode())
    assert isinstance(key, Ed25519PublicKey)
    return key


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def check_head(head: dict[str, Any], key: Ed25519PublicKey) -> None:
    """Raises InvalidSignature unless the key signed the head."""
    text = f"amend-register-head-v1\n{head['size']}\n{head['root']}\n{head['time']}\n"
    key.verify(base64.b64decode(head["signature"]), text.encode())


def root_of(entry: dict[str, Any], size: int) -> str:
    """The root that an entry leads to, once its record matches its commitment."""
    text = json.dumps(entry["record"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert sha(bytes.fromhex(entry["salt"]), text.encode()).hex() == entry["commitment"]
    node, last, value = entry["leaf"], size - 1, sha(b"\0", bytes.fromhex(entry["commitment"]))
    for step in map(bytes.fromhex, entry["path"]):
        if node % 2 or node == last:
            value = sha(b"\1", step, value)
            while node % 2 == 0 and node:
                node, last = node >> 1, last >> 1
        else:
            value = sha(b"\1", value, step)
        node, last = node >> 1, last >> 1
    assert last == 0
    return value.hex()


def test_an_acknowledgement_proves_that_the_request_was_filed(api: httpx.Client, stack: Stack) -> None:
    erasure = open_erasure(stack, api, reference="case 7")
    entry = erasure["acknowledgement"]
    check_head(entry["head"], key_of(api))
    assert root_of(entry, entry["head"]["size"]) == entry["head"]["root"]
    record = entry["record"]
    assert (record["kind"], record["erasure"], record["reference"]) == ("filed", erasure["id"], "case 7")
    assert (record["received_at"], record["due_at"]) == (erasure["received_at"], erasure["due_at"])
    assert record["actor"]["name"]
    assert api.get(f"/v1/erasures/{erasure['id']}").json()["acknowledgement"] is None


def test_requests_of_a_batch_are_acknowledged_under_one_head(api: httpx.Client) -> None:
    people = [{"subject": somebody()} for _ in range(3)]
    items = api.post("/v1/erasures/batch", json={"requests": people}).raise_for_status().json()["items"]
    head = head_of(api)
    assert len(items) == 3
    for item in items:
        entry = item["acknowledgement"]
        assert (entry["head"], root_of(entry, head["size"])) == (head, head["root"])
        assert entry["record"]["erasure"] == item["id"]


def test_an_envelope_is_signed_and_contained_in_the_register(api: httpx.Client) -> None:
    erasure = erase_nobody(api)
    shown = api.get(erasure["receipt"]).json()
    envelope = api.get(f"/v1/receipts/{shown['number']}").raise_for_status().json()
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    [signature] = envelope["signatures"]
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    key_of(api).verify(base64.b64decode(signature["sig"]), pae)
    statement, register = json.loads(payload), envelope["register"]
    assert statement["predicate"].items() <= shown.items()
    assert [subject["name"] for subject in statement["subject"]] == [f"erasure/{erasure['id']}"]
    assert register["record"]["statement"] == hashlib.sha256(payload).hexdigest() == shown["sha256"]
    check_head(register["head"], key_of(api))
    assert root_of(register, register["head"]["size"]) == register["head"]["root"]
    listed = api.get("/v1/receipts", params={"limit": 1}).json()["items"]
    assert [item["number"] for item in listed] == [shown["number"]]
    refused(api.get("/v1/receipts/999999"), 404, "receipt_not_found")


def test_proofs_name_what_they_prove(api: httpx.Client) -> None:
    ask(api, somebody())
    size = head_of(api)["size"]
    leaf = api.get("/v1/register/proof", params={"leaf": 0}).raise_for_status().json()
    assert (leaf["leaf"], leaf["size"], len(leaf["leaf_hash"])) == (0, size, 64)
    proof = api.get("/v1/register/proof", params={"from": 1, "to": size}).raise_for_status().json()
    assert (proof["from"], proof["to"]) == (1, size)
    assert proof["path"] == leaf["path"]  # the tree of one leaf is that leaf
    assert api.get("/v1/register/proof", params={"from": size}).json()["path"] == []


@pytest.mark.parametrize("query", [{}, {"leaf": 0, "from": 1}, {"size": 1}, {"to": 1}, {"leaf": 0, "to": 1}])
def test_a_proof_of_nothing_in_particular_is_refused(api: httpx.Client, query: dict[str, int]) -> None:
    refused(api.get("/v1/register/proof", params=query), 422, "query_invalid")


@pytest.mark.parametrize("query", [{"leaf": 10**9}, {"from": 0, "to": 10**9}, {"leaf": 5, "size": 5}])
def test_there_is_no_proof_of_what_the_register_does_not_contain(api: httpx.Client, query: dict[str, int]) -> None:
    for _ in range(3):
        ask(api, somebody())
    refused(api.get("/v1/register/proof", params=query), 404, "leaf_not_found")


def test_every_key_may_read_heads_and_proofs_and_only_erasers_receipts(stack: Stack, api: httpx.Client) -> None:
    ask(api, somebody())
    reader = stack.client(stack.key("read"))
    for path in ("/v1/register/head", "/v1/register/key", "/v1/register/proof?leaf=0"):
        assert reader.get(path).status_code == 200
    for path in ("/v1/receipts", "/v1/receipts/1", "/v1/receipts/verify"):
        refused(reader.get(path), 403, "scope_missing")


def verify(api: httpx.Client, **older: Any) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v1/receipts/verify", params=older).raise_for_status().json()
    return found


def test_the_verification_accepts_an_older_head_only_if_the_register_extends_it(api: httpx.Client) -> None:
    older = head_of(api)
    ask(api, somebody())
    assert verify(api, size=older["size"], root=older["root"])["valid"]
    [flaw] = verify(api, size=older["size"] + 1, root=older["root"])["flaws"]
    assert flaw["problem"].startswith("rewritten")
    [flaw] = verify(api, size=10**6, root=older["root"])["flaws"]
    assert flaw["problem"].startswith("truncated")
    refused(api.get("/v1/receipts/verify", params={"size": 1}), 422, "query_invalid")


def test_the_verification_names_altered_receipts_and_files(stack: Stack, api: httpx.Client) -> None:
    number = api.get(erase_nobody(api)["receipt"]).json()["number"]
    before = verify(api)
    assert (before["valid"], before["flaws"]) == (True, [])
    assert before["head"] == head_of(api)
    store = Store(stack.settings.artifacts)
    kept = store.get(receipts.name_of(number))
    store.write(receipts.name_of(number), b"{")
    try:
        assert {flaw["receipt"] for flaw in verify(api)["flaws"]} == {number}
    finally:
        store.write(receipts.name_of(number), kept)
    with stack.database.write() as session:
        row = session.get_one(Receipt, number)
        payload, row.payload = row.payload, row.payload.replace(b"No example", b"My example")
    try:
        assert {flaw["receipt"] for flaw in verify(api)["flaws"]} == {number}
    finally:
        with stack.database.write() as session:
            session.get_one(Receipt, number).payload = payload
    assert verify(api)["valid"]


def test_actions_and_exports_name_their_actors(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api, hold=True)
    for action, body in (("extend", {"reason": "many requests"}), ("refuse", {"reason": "a legal duty"})):
        api.post(f"/v1/erasures/{erasure['id']}/{action}", json=body).raise_for_status()
    trail = api.get(f"/v1/erasures/{erasure['id']}").json()["trail"]
    assert [entry["action"] for entry in trail] == ["filed", "held", "extended", "refused"]
    assert all(entry["by"] and entry["name"] for entry in trail)
    size = head_of(api)["size"]
    api.post("/v1/subjects/export", json={"subject": somebody()}).raise_for_status()
    assert head_of(api)["size"] == size + 1
