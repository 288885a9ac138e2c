"""Frozen encoders and erasures: an encoder that was fitted on a person's data still depends on it.

Amend cannot refit an uploaded encoder. The policy decides whether the erasure fails until the model has another one, or
whether the receipt states what is left. The splits of imported trees are such an encoder, too, but Amend can learn
other splits if the policy permits it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.kprior.model.spec import frozen_encoder
from core.ledger.spec_history import spec_at
from core.models.policy import policy_of
from core.tables.encoders import UploadedEncoder
from core.tables.erasures import Erasure, Part
from core.tables.models import Model
from core.tables.versions import Version, VersionKind
from core.versions.queries import tip_of


def describe(session: Session, model: Model) -> dict[str, str] | None:
    """The encoder of a model as receipts name it; None if it has none."""
    spec = spec_at(session, model.id, model.spec, model.head)
    encoder, given = frozen_encoder(spec), spec["input"]
    if given["kind"] in ("vector", "table") and "transform" in given:  # the steps of an imported pipeline
        text = json.dumps(given["transform"]["steps"], sort_keys=True)
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        return {"kind": "steps", "trained_on": given["transform"].get("trained_on", "examples"), "digest": digest}
    if spec["architecture"]["kind"] == "trees":
        return {"kind": "trees", "trained_on": "examples"}
    if encoder is None:
        return None
    found = {"kind": encoder["kind"], "trained_on": str(encoder.get("trained_on", "other"))}
    return found if encoder["kind"] == "hashing" else found | {"digest": encoder["digest"]}


def has_imported_splits(session: Session, model: Model) -> bool:
    """Whether the trees of the model's newest version were imported: no version since has learnt other splits."""
    version = tip_of(session, model)
    while version is not None and version.kind is VersionKind.ADAPTED and version.parent is not None:
        version = session.get(Version, (model.id, version.parent))
    return version is not None and version.method == "imported"


def may_depend_on(session: Session, model: Model, erasure: Erasure) -> bool:
    """Whether the model's encoder was fitted on examples, and uploaded or imported before the request."""
    encoder = describe(session, model)
    if encoder is None or encoder["trained_on"] != "examples":
        return False
    if encoder["kind"] == "trees":
        return has_imported_splits(session, model)
    uploaded = session.get(UploadedEncoder, encoder.get("digest", "").removeprefix("sha256:"))
    return uploaded is None or uploaded.created_at <= erasure.created_at


def require_replaced(session: Session, model: Model, parts: Sequence[tuple[Part, Erasure]]) -> None:
    """Raise Conflict if the policy requires another encoder before a person can be erased."""
    policy = policy_of(model).erasure
    if policy.encoder == "report":
        return
    if not any(part.positions and may_depend_on(session, model, erasure) for part, erasure in parts):
        return
    if spec_at(session, model.id, model.spec, model.head)["architecture"]["kind"] == "trees":
        if policy.retrain is not True:
            raise Conflict("encoder_required", IMPORTED_TREES)
        return
    raise Conflict("encoder_required", FITTED_ENCODER)


FITTED_ENCODER = (
    "The encoder of the model was fitted on examples before the request. Upload an encoder that was fitted without the "
    "person's data, name it in the architecture (POST .../changes), and retry the erasure; if the steps of an imported "
    "pipeline were fitted, import the refitted pipeline as a new model. Or set policy.erasure.encoder to `report`: the "
    "receipt then states that the encoder was not replaced."
)
IMPORTED_TREES = (
    "The splits of the imported trees were learnt from examples before the request, and Amend cannot fit them again. "
    "Set policy.erasure.retrain to true and retry the erasure: LightGBM then learns other splits from the examples "
    "that are left. Or fit the trees again without the person's data, import them as a new model, and delete this one."
)
