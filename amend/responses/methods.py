"""Methods of response types. The fields are generated (see tools/client_types.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from amend.responses.base import Response

if TYPE_CHECKING:
    from amend.responses import Added, Erasure, Job, Replaced


class AddedMethods(Response, frozen=True):
    def __add__(self: Added, later: Added) -> Added:  # type: ignore[misc]
        """The response to both batches, as if they had been one."""
        return replace(
            later,
            accepted=self.accepted + later.accepted,
            duplicates=self.duplicates + later.duplicates,
            first_position=later.first_position if self.first_position is None else self.first_position,
            last_position=self.last_position if later.last_position is None else later.last_position,
        )


class ReplacedMethods(Response, frozen=True):
    def __add__(self: Replaced, later: Replaced) -> Replaced:  # type: ignore[misc]
        """The response to both batches, as if they had been one."""
        replaced, unchanged = self.replaced + later.replaced, self.unchanged + later.unchanged
        return replace(later, replaced=replaced, unchanged=unchanged, job=later.job or self.job)


class ErasureMethods(Response, frozen=True):
    @property
    def ended(self: Erasure) -> bool:  # type: ignore[misc]
        return self.state in ("completed", "failed", "refused")


class JobMethods(Response, frozen=True):
    @property
    def ended(self: Job) -> bool:  # type: ignore[misc]
        return self.state not in ("queued", "running")
