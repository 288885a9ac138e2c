"""The bundle of an erasure: all evidence in one zip file, which `amend verify` checks without access to the service."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, utc_text
from core.erasure import receipts
from core.erasure.evidence import commit_rows
from core.erasure.queries import parts_of
from core.register import log, signed_tree
from core.register.published_keys import public_keys
from core.tables.erasures import Erasure, Receipt
from core.tables.models import Model
from core.tables.register import StampedHead
from core.tables.versions import Version
from core.versions.store import Store

Files = dict[str, bytes]
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class BundleRequest:
    """What a bundle should contain besides the receipt and the proofs."""

    may_read_weights: Callable[[Model], bool]
    rows: bool = False
    """Include the retained rows, which are personal data of others."""
    older_sizes: list[int] = field(default_factory=list)
    """Sizes of older heads, for which the bundle has consistency proofs."""


def make_bundle(database: Database, store: Store, erasure: Erasure, wanted: BundleRequest) -> bytes:
    """The zip file."""
    with database.read() as session:
        receipt = session.get(Receipt, erasure.receipt) if erasure.receipt else None
        files = collect_proofs(session, erasure, receipt, wanted.older_sizes)
        versions = find_versions(session, erasure, receipt) if receipt else []
    for model, version, certificate in versions:
        if wanted.may_read_weights(model):
            files |= describe_version(database, store, model, version, certificate, wanted.rows)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[MANIFEST] = dump({"v": 1, "erasure": erasure.id, "created_at": utc_text(now()), "files": hashes})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def names_of_rows(bundle: bytes) -> list[str]:
    """The names of the models whose rows are in a bundle."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        files = [PurePosixPath(name) for name in archive.namelist()]
    return [file.stem for file in files if file.parent.name == "rows"]


def dump(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def collect_proofs(session: Session, erasure: Erasure, receipt: Receipt | None, older: list[int]) -> Files:
    """The receipt, and what ties the request to the register."""
    head, keys = signed_tree.current_head(session), public_keys(session)
    leaves = log.leaves_of(session, erasure.id)
    # not the newest leaf: that is the download of this bundle, which no time stamp can include yet
    dated = [leaves[0].index if leaves else 0, *([] if receipt is None else [receipt.leaf])]
    stamped = find_stamped(session, dated)
    sizes = {*older, *(one.size for one in stamped), *(key["head"]["size"] for key in keys["earlier"] if key["head"])}
    if receipt is not None:
        sizes.add(receipt.head["size"])
    proofs = [
        {"from": size, "to": head["size"], "path": signed_tree.prove_consistency(session, size, head["size"])}
        for size in sorted(sizes)
    ]
    files = {"receipt.json": dump(receipts.envelope_of(session, receipt))} if receipt is not None else {}
    files |= {
        "head.json": dump(head),
        "consistency.json": dump(proofs),
        "entries.json": dump([log.entry(session, leaf, head["size"]) for leaf in leaves]),
        "key.json": dump(keys),
    }
    for i, one in enumerate(stamped, 1):
        files |= {f"timestamps/{i:03d}.tsr": one.response, f"timestamps/{i:03d}.json": dump(one.head)}
    return files


def find_stamped(session: Session, leaves: list[int]) -> list[StampedHead]:
    """For each of these leaves, the first time-stamped head that includes it, if there is one."""
    query = select(StampedHead).order_by(StampedHead.size).limit(1)
    found = (session.scalar(query.where(StampedHead.size > leaf)) for leaf in leaves)
    return list({one.size: one for one in found if one is not None}.values())


def find_versions(session: Session, erasure: Erasure, receipt: Receipt) -> list[tuple[Model, Version, Any]]:
    """The versions that the receipt names and that still exist, with their models and signed certificates."""
    signed = {model["model"]: model for model in receipts.read_statement(receipt)["predicate"]["models"]}
    found = []
    for part in parts_of(session, erasure):
        model, report = session.get(Model, part.model_id), signed.get(part.model, {})
        version = session.get(Version, (part.model_id, report.get("version", 0)))
        if model is not None and version is not None and version.salt is not None:  # deleted with the weights
            found.append((model, version, report.get("certificate")))
    return found


def describe_version(
    database: Database, store: Store, model: Model, version: Version, certificate: Any, with_rows: bool
) -> Files:
    """The file of a version and its objective, and the rows that it reflects."""
    from core.kprior import State  # imports torch, which the scheduler does not need
    from core.versions.exported_objective import RetainedRows, describe_objective, save_rows

    assert version.salt is not None
    content, name = store.get(version.file, version.sha256), model.name
    state = State.from_bytes(content)
    files = {f"versions/{name}.safetensors": content}
    described = {
        "model": name,
        "version": version.number,
        "sha256": version.sha256,
        "salt": version.salt.hex(),
        "weights": f"versions/{name}.safetensors",
        "objective": describe_objective(state),
        "certificate": certificate,
        "rows": None,
        "rows_file": None,
    }
    if with_rows and described["objective"] is not None:
        rows = RetainedRows(database, model, version, state, version.salt)
        if (committed := commit_rows(rows)) is not None:  # otherwise, examples have been deleted since
            described |= {"rows": asdict(committed)}
            described |= {"rows_file": f"rows/{name}.safetensors"}
            files[f"rows/{name}.safetensors"] = save_rows(rows.read())
    return {**files, f"versions/{name}.json": dump(described)}
