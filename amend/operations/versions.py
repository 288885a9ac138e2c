"""Listing, comparing, promoting and exporting versions."""

from __future__ import annotations

from typing import Literal

from amend import responses
from amend.client_methods import listing, operation
from amend.errors import Conflict
from amend.requests import Call, Caller, Flow, Pages, path

VersionName = int | Literal["champion"]


class Versions(Caller):
    """Methods for versions. A version is given by its number or as ``"champion"``. Weights, ONNX files and coefficients
    require a key with the scope `weights`."""

    @listing
    def versions(self, model: str) -> Pages[responses.Version]:
        """Iterate over versions, newest first."""
        return Pages(responses.Version, path("models", model, "versions"))

    @operation
    def version(self, model: str, version: VersionName) -> Flow[responses.Version]:
        """One version: metrics, certificate and cost."""
        number = yield from self.find_number(model, version)
        return (yield from self.ask(responses.Version, "GET", path("models", model, "versions", number)))

    @operation
    def promote(self, model: str, version: int) -> Flow[responses.Promoted]:
        """Make a version the champion. Promoting an older one (a rollback) holds the model until ``resume``.

        If the version was purged, a job trains a new version at the same position and promotes that one: wait for it
        with ``client.wait``.
        """
        return self.ask(responses.Promoted, "POST", path("models", model, "versions", version, "promote"))

    @operation
    def accept(self, model: str, version: int) -> Flow[responses.Decision]:
        """Accept a version that the promotion gate rejected: put its examples back into force and promote it."""
        return self.ask(responses.Decision, "POST", path("models", model, "versions", version, "accept"))

    @operation
    def discard(self, model: str, version: int) -> Flow[responses.Decision]:
        """Discard a version that the promotion gate rejected: remove the examples that it learnt."""
        return self.ask(responses.Decision, "POST", path("models", model, "versions", version, "discard"))

    @operation
    def compare(self, model: str, a: VersionName, b: VersionName) -> Flow[responses.SideBySide]:
        """Compare two versions: specs, holdout metrics, holdout predictions and coefficients."""
        one = yield from self.find_number(model, a)
        other = yield from self.find_number(model, b)
        place = path("models", model, "versions", one, "compare", other)
        return (yield from self.ask(responses.SideBySide, "GET", place))

    @listing
    def promotions(self, model: str) -> Pages[responses.Promotion]:
        """Iterate over promotions, newest first."""
        return Pages(responses.Promotion, path("models", model, "promotions"))

    @listing
    def comparisons(self, model: str) -> Pages[responses.Comparison]:
        """Iterate over comparisons of adapted versions with full retrains at the same position, newest first."""
        return Pages(responses.Comparison, path("models", model, "comparisons"))

    @operation
    def weights(self, model: str, version: VersionName) -> Flow[bytes]:
        """The weights of a version, as the bytes of a safetensors file."""
        number = yield from self.find_number(model, version)
        response = yield from self.send(Call("GET", path("models", model, "versions", number, "weights")))
        return response.content

    @operation
    def export_onnx(self, model: str, version: VersionName) -> Flow[bytes]:
        """A version as the bytes of an ONNX file that maps raw inputs to predictions."""
        number = yield from self.find_number(model, version)
        response = yield from self.send(Call("GET", path("models", model, "versions", number, "onnx")))
        return response.content

    @operation
    def coefficients(
        self, model: str, version: VersionName
    ) -> Flow[responses.ResponseList[responses.NamedCoefficient]]:
        """The coefficients of a linear model, by feature and class."""
        page = responses.Page[responses.NamedCoefficient]
        number = yield from self.find_number(model, version)
        found = yield from self.ask(page, "GET", path("models", model, "versions", number, "coefficients"))
        return responses.ResponseList(found.items)

    def find_number(self, model: str, version: VersionName) -> Flow[int]:
        """The number of a version that may be given as ``"champion"``."""
        if version != "champion":
            if isinstance(version, str) and not version.isdecimal():
                raise ValueError(f"{version!r} is neither the number of a version nor 'champion'.")
            return int(version)
        champion = (yield from self.ask(responses.Model, "GET", path("models", model))).champion
        if champion is None:
            raise Conflict(409, "champion_missing", f"{model} has no champion.")
        return champion
