"""Frozen encoders: ONNX files that turn raw inputs into the features of linear models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Call, Caller, Flow, Pages, path


class Encoders(Caller):
    @operation
    def upload_encoder(
        self, file: str | Path | bytes | Any, *, trained_on: Literal["other", "examples"] = "other"
    ) -> Flow[responses.Encoder]:
        """Upload an ONNX model: a path, bytes, or a model of the ``onnx`` package.

        Name the returned ``digest`` in the architecture of a model: ``{"kind": "linear", "encoder": {"kind": "onnx",
        "digest": ...}}``. ``trained_on`` is ``"examples"`` if the encoder was fitted on examples that Amend stores.
        """
        if isinstance(file, str | Path):
            content = Path(file).read_bytes()
        else:
            content = file if isinstance(file, bytes) else file.SerializeToString()
        headers = {"content-type": "application/octet-stream"}
        call = Call("POST", path("encoders"), {"trained_on": trained_on}, content=content, headers=headers)
        return self.read(responses.Encoder, (yield from self.send(call)))

    @listing
    def encoders(self) -> Pages[responses.Encoder]:
        """Iterate over the uploaded encoders."""
        return Pages(responses.Encoder, path("encoders"))

    @operation
    def encoder(self, digest: str) -> Flow[responses.Encoder]:
        """The description of an encoder."""
        return self.ask(responses.Encoder, "GET", path("encoders", digest))

    @operation
    def delete_encoder(self, digest: str) -> Flow[None]:
        """Delete an encoder that no model uses."""
        yield from self.send(Call("DELETE", path("encoders", digest)))
