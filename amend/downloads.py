"""What a version is made of, to take elsewhere. All of it takes a key with the scope `weights`."""

from __future__ import annotations

from amend import responses
from amend.sansio import Call, Caller, Flow, operation, path


class Downloads(Caller):
    """One method for each form."""

    @operation
    def weights(self, model: str, version: int) -> Flow[bytes]:
        """The version's state, a safetensors file."""
        response = yield from self.send(Call("GET", path("models", model, "versions", version, "weights")))
        return response.content

    @operation
    def export_onnx(self, model: str, version: int) -> Flow[bytes]:
        """The version as an ONNX file: raw inputs in, predictions out, in any runtime."""
        response = yield from self.send(Call("GET", path("models", model, "versions", version, "onnx")))
        return response.content

    @operation
    def coefficients(self, model: str, version: int) -> Flow[list[responses.NamedCoefficient]]:
        """The coefficients of a linear model by the names of its features, class by class."""
        page = responses.Page[responses.NamedCoefficient]
        found = yield from self.ask(page, "GET", path("models", model, "versions", version, "coefficients"))
        return found.items
