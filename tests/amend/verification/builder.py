"""Writes bundles as the format describes them, without any code of the service or of the verifier."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors.numpy import save

from tests.naive_merkle import audit_path, consistency_proof, tree_hash

ERASURE = "4e1d7a90-8c35-4b62-a7f1-93d05c2be684"
Files = dict[str, bytes]
BLOCK_ROWS = 256
"""Rows that are hashed together."""


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def dump(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


class Signer:
    """A key pair that comes from a number."""

    def __init__(self, seed: int) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(sha256(b"key %d" % seed).digest())
        public = self.private.public_key()
        self.pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        self.key_id = sha256(public.public_bytes_raw()).hexdigest()[:16]

    def sign(self, message: bytes) -> str:
        return base64.b64encode(self.private.sign(message)).decode()

    def envelope(self, payload: bytes, kind: str = "application/vnd.in-toto+json") -> dict[str, Any]:
        encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
        signature = {"keyid": self.key_id, "sig": self.sign(encoded)}
        return {"payloadType": kind, "payload": base64.b64encode(payload).decode(), "signatures": [signature]}


@dataclass
class Log:
    """A register: records with their salts."""

    signer: Signer = field(default_factory=lambda: Signer(1))
    records: list[dict[str, Any]] = field(default_factory=list)

    def append(self, kind: str, erasure: str | None = ERASURE, **fields: Any) -> int:
        actor = {"id": "key_1", "name": "Zoë"}
        about = {} if erasure is None else {"erasure": erasure}
        self.records.append({"v": 1, "kind": kind, "at": "2026-11-01T08:00:00Z", "actor": actor, **about, **fields})
        return len(self.records) - 1

    def salt(self, leaf: int) -> bytes:
        return sha256(b"salt %d" % leaf).digest()

    def commitments(self, size: int | None = None) -> list[bytes]:
        made = [sha256(self.salt(i) + canonical(record)).digest() for i, record in enumerate(self.records)]
        return made[:size]

    def head(self, size: int | None = None, signer: Signer | None = None) -> dict[str, Any]:
        leaves, signer = self.commitments(size), signer or self.signer
        root, time = tree_hash(leaves).hex(), f"2026-11-01T08:{len(leaves):02d}:00Z"
        signature = signer.sign(f"amend-register-head-v1\n{len(leaves)}\n{root}\n{time}\n".encode())
        return {"size": len(leaves), "root": root, "time": time, "signature": signature, "key_id": signer.key_id}

    def entry(self, leaf: int, size: int | None = None, expired: bool = False) -> dict[str, Any]:
        leaves = self.commitments(size)
        return {
            "leaf": leaf,
            "record": None if expired else self.records[leaf],
            "salt": None if expired else self.salt(leaf).hex(),
            "commitment": leaves[leaf].hex(),
            "path": [node.hex() for node in audit_path(leaf, leaves)],
        }

    def consistency(self, size: int) -> dict[str, Any]:
        path = consistency_proof(size, self.commitments())
        return {"from": size, "to": len(self.records), "path": [node.hex() for node in path]}


@dataclass
class Model:
    """A model in a bundle: weights, objective and rows."""

    weights: np.ndarray
    delta: np.ndarray
    features: Any
    targets: np.ndarray
    sample_weights: np.ndarray
    family: str = "bernoulli"
    bound: float = 1e-5
    name: str = "churn"
    options: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    """Further tensors of the objective: `toward`, `perturbation`."""

    def weights_file(self) -> bytes:
        tensors = {"w": self.weights, "delta": self.delta, **self.extra, "memory": np.zeros(3)}
        return save({name: tensor.ravel() for name, tensor in tensors.items()})

    def salts(self) -> np.ndarray:
        made = [sha256(b"block %d" % i).digest() for i in range(-(-len(self.targets) // BLOCK_ROWS))]
        return np.frombuffer(b"".join(made), np.uint8).reshape(-1, 32).copy()

    def positions(self) -> np.ndarray:
        return np.arange(len(self.targets), dtype=np.int64) * 2 + 1

    def rows_file(self) -> bytes:
        if hasattr(self.features, "indptr"):
            names = ("data", "indices", "indptr")
            features = {name: np.asarray(getattr(self.features, name)) for name in names}
            features = {name: a if name == "data" else a.astype(np.int64) for name, a in features.items()}
        else:
            features = {"features": np.ascontiguousarray(self.features)}
        others = {"targets": self.targets, "sample_weights": self.sample_weights}
        return save({**features, **others, "positions": self.positions(), "salts": self.salts()})

    def root(self) -> str:
        dense = self.features.toarray() if hasattr(self.features, "toarray") else self.features
        columns = (self.positions(), dense, self.targets, self.sample_weights)
        rows = [
            int(position).to_bytes(8, "little") + b"".join(np.asarray(part, "<f8").tobytes() for part in numbers)
            for position, *numbers in zip(*columns, strict=True)
        ]
        blocks = [b"".join(rows[start : start + BLOCK_ROWS]) for start in range(0, len(rows), BLOCK_ROWS)]
        leaves = [sha256(salt.tobytes() + rows).digest() for salt, rows in zip(self.salts(), blocks, strict=True)]
        return tree_hash(leaves).hex()

    def rows(self) -> dict[str, Any]:
        return {"count": len(self.targets), "root": self.root()}

    def objective(self) -> dict[str, Any]:
        tensors = {name: name for name in self.extra}
        shape = {"layout": "outputs x features, row by row", "shape": list(self.weights.shape)}
        return {"family": self.family, **shape, "weights": "w", "delta": "delta", **self.options, **tensors}

    def files(self) -> Files:
        description = {
            "model": self.name,
            "version": 7,
            "sha256": sha256(self.weights_file()).hexdigest(),
            "salt": sha256(b"version").hexdigest(),
            "weights": f"versions/{self.name}.safetensors",
            "objective": self.objective(),
            "certificate": {"kind": "bound", "bound": self.bound},
            "rows": self.rows(),
            "rows_file": f"rows/{self.name}.safetensors",
        }
        return {
            f"versions/{self.name}.json": dump(description),
            f"versions/{self.name}.safetensors": self.weights_file(),
            f"rows/{self.name}.safetensors": self.rows_file(),
        }

    def subject(self) -> dict[str, Any]:
        digest = sha256(sha256(b"version").digest() + sha256(self.weights_file()).digest()).hexdigest()
        return {"name": f"model/{self.name}/version/7", "digest": {"sha256": digest}}

    def report(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "version": 7,
            "certificate": {"kind": "bound", "bound": self.bound},
            "objective": self.objective(),
            "rows": self.rows(),
        }


@dataclass
class Bundle:
    """A bundle that verifies. Tests change parts of it before it is written."""

    log: Log
    files: Files
    receipt_size: int

    def edit(self, name: str, change: Callable[[Any], Any]) -> Bundle:
        """Change a JSON file, by a function that returns the new value or changes it in place."""
        value = json.loads(self.files[name])
        changed = change(value)
        self.files[name] = dump(value if changed is None else changed)
        return self

    def write(self, path: Path, manifest: bool = True) -> Path:
        """Write the zip file, with a manifest that matches it."""
        files = dict(self.files)
        if manifest:
            files["manifest.json"] = manifest_of(files)
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path


def manifest_of(files: Files, erasure: str = ERASURE) -> bytes:
    hashes = {name: sha256(content).hexdigest() for name, content in files.items() if name != "manifest.json"}
    return dump({"v": 1, "erasure": erasure, "created_at": "2026-11-01T09:00:00Z", "files": hashes})


def statement_of(filed: str, model: Model | None, erasure: str = ERASURE) -> bytes:
    subjects = [{"name": f"erasure/{erasure}", "digest": {"sha256": filed}}]
    predicate: dict[str, Any] = {"number": 1, "models": []}
    if model is not None:
        subjects.append(model.subject())
        predicate["models"].append(model.report())
    kinds = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://amend.dev/erasure-receipt/v1"}
    return canonical({**kinds, "subject": subjects, "predicate": predicate})


def make_bundle(model: Model | None = None, log: Log | None = None, erasure: str = ERASURE) -> Bundle:
    """A bundle of a completed erasure, in a register that has other entries before, between and after."""
    log = log or Log()
    log.append("filed", "another")
    filed = log.append("filed", erasure, subject_token="t1")
    log.append("completed", "another", receipt=1, statement="0" * 64)
    payload = statement_of(log.commitments()[filed].hex(), model, erasure)
    completed = log.append("completed", erasure, receipt=2, statement=sha256(payload).hexdigest())
    size = len(log.records)
    registered = {**log.entry(completed), "head": log.head()}
    envelope = {**log.signer.envelope(payload), "register": registered}
    for _ in range(3):
        log.append("filed", "later")
    return Bundle(log, assemble(log, size, envelope, [filed, completed], model), size)


def assemble(log: Log, size: int, envelope: Mapping[str, Any], leaves: list[int], model: Model | None) -> Files:
    key = {"key_id": log.signer.key_id, "algorithm": "ed25519", "public_key": log.signer.pem, "earlier": []}
    return {
        "receipt.json": dump(envelope),
        "head.json": dump(log.head()),
        "consistency.json": dump([log.consistency(size)]),
        "entries.json": dump([log.entry(leaf) for leaf in leaves]),
        "key.json": dump(key),
        **(model.files() if model else {}),
    }


def zip_bytes(files: Files) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
