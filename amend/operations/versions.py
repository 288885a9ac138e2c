"""Versions: looked at, compared, promoted, and taken elsewhere."""

from __future__ import annotations

from typing import Literal

from amend import responses
from amend.errors import Conflict
from amend.sansio import Call, Caller, Flow, Pages, listing, operation, path

VersionName = int | Literal["champion"]


class Versions(Caller):
    """A version is named by its number, or as the ``"champion"``. What is taken elsewhere needs a key with the scope
    `weights`."""

    @listing
    def versions(self, model: str) -> Pages[responses.Version]:
        """Versions, the newest first."""
        return Pages(responses.Version, path("models", model, "versions"))

    @operation
    def version(self, model: str, version: VersionName) -> Flow[responses.Version]:
        """One version: metrics, certificate, cost."""
        number = yield from self.find_number(model, version)
        return (yield from self.ask(responses.Version, "GET", path("models", model, "versions", number)))

    @operation
    def promote(self, model: str, version: int) -> Flow[responses.Promoted]:
        """Make a version the champion. Promoting an older one is the rollback, and holds the model until ``resume``."""
        return self.ask(responses.Promoted, "POST", path("models", model, "versions", version, "promote"))

    @operation
    def compare(self, model: str, a: VersionName, b: VersionName) -> Flow[responses.SideBySide]:
        """Two versions side by side: specs, figures and predictions on the holdout, coefficients."""
        one = yield from self.find_number(model, a)
        other = yield from self.find_number(model, b)
        place = path("models", model, "versions", one, "compare", other)
        return (yield from self.ask(responses.SideBySide, "GET", place))

    @listing
    def promotions(self, model: str) -> Pages[responses.Promotion]:
        """What was champion when, the newest first."""
        return Pages(responses.Promotion, path("models", model, "promotions"))

    @listing
    def comparisons(self, model: str) -> Pages[responses.Comparison]:
        """Adapted versions next to full retrains at the same positions, the newest first."""
        return Pages(responses.Comparison, path("models", model, "comparisons"))

    @operation
    def weights(self, model: str, version: VersionName) -> Flow[bytes]:
        """The version's state, a safetensors file."""
        number = yield from self.find_number(model, version)
        response = yield from self.send(Call("GET", path("models", model, "versions", number, "weights")))
        return response.content

    @operation
    def export_onnx(self, model: str, version: VersionName) -> Flow[bytes]:
        """The version as an ONNX file: raw inputs in, predictions out, in any runtime."""
        number = yield from self.find_number(model, version)
        response = yield from self.send(Call("GET", path("models", model, "versions", number, "onnx")))
        return response.content

    @operation
    def coefficients(self, model: str, version: VersionName) -> Flow[list[responses.NamedCoefficient]]:
        """The coefficients of a linear model by the names of its features, class by class."""
        page = responses.Page[responses.NamedCoefficient]
        number = yield from self.find_number(model, version)
        found = yield from self.ask(page, "GET", path("models", model, "versions", number, "coefficients"))
        return found.items

    def find_number(self, model: str, version: VersionName) -> Flow[int]:
        """The number of a version."""
        if version != "champion":
            return version
        champion = (yield from self.ask(responses.Model, "GET", path("models", model))).champion
        if champion is None:
            raise Conflict(409, "champion_missing", f"{model} has no champion.")
        return champion
