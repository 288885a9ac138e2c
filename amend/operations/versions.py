"""Versions: looked at, compared, promoted, and taken elsewhere."""

from __future__ import annotations

from amend import responses
from amend.sansio import Call, Caller, Flow, Pages, listing, operation, path


class Versions(Caller):
    """What is taken elsewhere needs a key with the scope `weights`."""

    @listing
    def versions(self, model: str) -> Pages[responses.Version]:
        """Versions, the newest first."""
        return Pages(responses.Version, path("models", model, "versions"))

    @operation
    def version(self, model: str, version: int) -> Flow[responses.Version]:
        """One version: metrics, certificate, cost."""
        return self.ask(responses.Version, "GET", path("models", model, "versions", version))

    @operation
    def promote(self, model: str, version: int) -> Flow[responses.Promoted]:
        """Make a version the champion. Promoting an older one is the rollback, and holds the model until ``resume``."""
        return self.ask(responses.Promoted, "POST", path("models", model, "versions", version, "promote"))

    @operation
    def compare(self, model: str, a: int, b: int) -> Flow[responses.SideBySide]:
        """Two versions side by side: specs, figures and predictions on the holdout, coefficients."""
        return self.ask(responses.SideBySide, "GET", path("models", model, "versions", a, "compare", b))

    @listing
    def promotions(self, model: str) -> Pages[responses.Promotion]:
        """What was champion when, the newest first."""
        return Pages(responses.Promotion, path("models", model, "promotions"))

    @listing
    def comparisons(self, model: str) -> Pages[responses.Comparison]:
        """Adapted versions next to full retrains at the same positions, the newest first."""
        return Pages(responses.Comparison, path("models", model, "comparisons"))

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
