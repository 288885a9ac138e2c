"""Uploaded encoders: ONNX files in the store, each identified by its digest, and their descriptions in the database."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.encoders.onnx_compatibility import check_inputs
from core.encoders.plugins import load_plugin
from core.encoders.sandbox import ChildFailed, Description, ModelRefused, Sandbox
from core.errors import Conflict, Invalid, NotFound
from core.kprior.model.spec import FrozenEncoder, PredictorSpec, Spec, frozen_encoder
from core.ledger.spec_history import specs_at
from core.settings import Settings
from core.tables.encoders import UploadedEncoder
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.store import Store

PREFIX = "sha256:"


def file_name(digest: str) -> str:
    """Name of an encoder's file in the store."""
    return f"encoders/{digest.removeprefix(PREFIX)}.onnx"


def examine(content: bytes, settings: Settings) -> Description:
    """Describe an ONNX file; raises Invalid if it must not be used. The file is only read in a child process."""
    try:
        return Sandbox(lambda: content, settings.encoder_memory, settings.encoder_timeout).check()
    except ModelRefused as error:
        raise Invalid("encoder_invalid", str(error)) from error
    except ChildFailed as error:
        raise Invalid("encoder_invalid", f"The encoder could not be loaded and run once. {error}") from error


def upload(session: Session, content: bytes, described: Description, trained_on: str) -> UploadedEncoder:
    """Record an encoder whose file is in the store; returns the one that exists if it was uploaded before.

    Raises Conflict if it was uploaded with another origin.
    """
    digest = hashlib.sha256(content).hexdigest()
    found = session.get(UploadedEncoder, digest)
    if found is None:
        found = UploadedEncoder(
            digest=digest,
            size=len(content),
            inputs=described["inputs"],
            outputs=described["outputs"],
            features=described["features"],
            trained_on=trained_on,
        )
        session.add(found)
        session.flush()
    if found.trained_on != trained_on:
        message = f"This encoder was uploaded with trained_on={found.trained_on}. Delete it first."
        raise Conflict("encoder_conflict", message)
    return found


def find(session: Session, digest: str, lock: bool = False) -> UploadedEncoder:
    """Find an encoder by its digest."""
    found = session.get(UploadedEncoder, digest.removeprefix(PREFIX), with_for_update=lock or None)
    if found is None:
        raise NotFound("encoder_not_found", "No encoder with this digest was uploaded.")
    return found


def page(session: Session, after: str, limit: int) -> list[UploadedEncoder]:
    """The next encoders, by digest."""
    query = select(UploadedEncoder).where(UploadedEncoder.digest > after.removeprefix(PREFIX))
    return list(session.scalars(query.order_by(UploadedEncoder.digest).limit(limit)))


def delete(session: Session, digest: str) -> None:
    """Delete the description of an encoder that no model uses; the caller deletes its file."""
    found = find(session, digest, lock=True)
    users = users_of(session, f"{PREFIX}{found.digest}")
    if users:
        message = (
            f"The model {users[0]!r} or one of its versions uses the encoder. Change its architecture and wait until "
            "its older versions are purged, or delete the model."
        )
        raise Conflict("encoder_in_use", message)
    session.delete(found)


def users_of(session: Session, digest: str) -> list[str]:
    """The names of the models that use an encoder now, or in a version that is not purged."""
    found = []
    for model in session.scalars(select(Model).order_by(Model.name)):
        kept = (Version.model_id == model.id, Version.state != VersionState.PURGED)
        positions = {model.head, *session.scalars(select(Version.position).where(*kept))}
        specs = specs_at(session, model.id, model.spec, positions).values()
        encoders = [cast("dict[str, Any]", frozen_encoder(spec) or {}) for spec in specs]
        if any(encoder.get("digest") == digest for encoder in encoders):
            found.append(model.name)
    return found


def complete_spec(session: Session, spec: Spec, lock: bool = False) -> Spec:
    """The spec with what the server knows about its encoder: the number of its features, its digest and its origin.

    With `lock`, nobody can delete the encoder before the transaction ends. Raises Invalid if the encoder does not
    exist, or does not fit the input.
    """
    encoder = frozen_encoder(spec)
    if encoder is not None and encoder["kind"] != "onnx" and spec["input"]["kind"] != "text":
        message = f"the encoder {encoder['kind']!r} requires text input"
        raise Invalid.at(("architecture", "encoder"), "encoder_unsuitable", message)
    if encoder is None or encoder["kind"] == "hashing":
        return spec
    location = ("architecture", "encoder")
    if encoder["kind"] == "plugin":
        plugin = load_plugin(encoder["name"])
        known: dict[str, Any] = {"digest": plugin.digest, "features": plugin.features}
    else:
        try:
            found = find(session, encoder["digest"], lock)
        except NotFound as error:
            message = "no encoder with this digest was uploaded; send its file to POST /v1/encoders first"
            raise Invalid.at((*location, "digest"), "encoder_not_found", message) from error
        check_inputs(found.inputs, spec["input"], location)
        known = {"features": found.features, "trained_on": found.trained_on}
    given = cast("dict[str, Any]", encoder)
    for name, value in known.items():
        if given.get(name, value) != value:
            raise Invalid.at((*location, name), "encoder_mismatch", f"is {value!r} for this encoder; leave it out")
    completed = cast("FrozenEncoder", {**encoder, **known})
    return cast("Spec", {**spec, "architecture": {**spec["architecture"], "encoder": completed}})


def find_file(store: Store, spec: PredictorSpec) -> bytes | None:
    """The file of a model's ONNX encoder; None if it has none."""
    encoder = frozen_encoder(spec)
    return read_file(store, encoder["digest"]) if encoder is not None and encoder["kind"] == "onnx" else None


def read_file(store: Store, digest: str) -> bytes:
    """The file of an encoder, whose digest is verified."""
    return store.get(file_name(digest), digest.removeprefix(PREFIX))
