"""Methods of response types. The fields are generated (see tools/client_types.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from amend import analysis_results, prediction_tables
from amend.responses.base import Response

if TYPE_CHECKING:
    from amend.responses import Added, Analysis, Erasure, Job, Predictions, Replaced


class AddedMethods(Response, frozen=True):
    def __add__(self: Added, later: Added) -> Added:  # type: ignore[misc]
        """The response to both batches, as if they had been one."""
        return replace(
            later,
            accepted=self.accepted + later.accepted,
            duplicates=self.duplicates + later.duplicates,
            quarantined=self.quarantined + later.quarantined,
            first_position=later.first_position if self.first_position is None else self.first_position,
            last_position=self.last_position if later.last_position is None else later.last_position,
        )


class ReplacedMethods(Response, frozen=True):
    def __add__(self: Replaced, later: Replaced) -> Replaced:  # type: ignore[misc]
        """The response to both batches, as if they had been one."""
        return replace(
            later,
            replaced=self.replaced + later.replaced,
            unchanged=self.unchanged + later.unchanged,
            quarantined=self.quarantined + later.quarantined,
            job=later.job or self.job,
        )


class PredictionsMethods(Response, frozen=True):
    def to_numpy(self: Predictions) -> Any:  # type: ignore[misc]
        """The predictions as numbers: (n,) means or scores, or (n, K) probabilities in the order of the classes."""
        return prediction_tables.numbers_of(prediction_tables.table_of(self.outputs))

    def to_arrow(self: Predictions) -> Any:  # type: ignore[misc]
        """A pyarrow table with the columns of the REST API."""
        return prediction_tables.table_of(self.outputs)

    def to_pandas(self: Predictions) -> Any:  # type: ignore[misc]
        """A pandas frame with one column for the probability of each class."""
        return prediction_tables.frame_of(prediction_tables.table_of(self.outputs))

    def __len__(self: Predictions) -> int:  # type: ignore[misc]
        return len(self.outputs)

    def __repr__(self: Predictions) -> str:  # type: ignore[misc]
        return f"Predictions({len(self.outputs)} outputs, version={self.version})"

    def _repr_html_(self: Predictions) -> str:  # type: ignore[misc]
        found: str = self.to_pandas()._repr_html_()
        return found


class AnalysisMethods(Response, frozen=True):
    def to_pandas(self: Analysis) -> Any:  # type: ignore[misc]
        """The rows of the result as a frame of pandas: rows, folds, values or predictions, whatever the kind has."""
        return analysis_results.to_pandas(self)

    def plot(self: Analysis, ax: Any = None) -> Any:  # type: ignore[misc]
        """Draw the result with matplotlib and return the axes."""
        return analysis_results.plot(self, ax)


class ErasureMethods(Response, frozen=True):
    @property
    def ended(self: Erasure) -> bool:  # type: ignore[misc]
        return self.state in ("completed", "failed", "refused", "withdrawn")


class JobMethods(Response, frozen=True):
    @property
    def ended(self: Job) -> bool:  # type: ignore[misc]
        return self.state not in ("queued", "running")
