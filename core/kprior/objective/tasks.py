"""The adaptation tasks. Any number of them combine in one solve, by adding their terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.kprior.data.examples import Data


@dataclass(frozen=True)
class AddData:
    """Examples that the new model has learnt from, too (paper, Eq. 2 left)."""

    data: Data


@dataclass(frozen=True)
class RemoveData:
    """Examples that the state stands for and the new model must not (paper, Eq. 2 right)."""

    data: Data


@dataclass(frozen=True)
class ChangeRegularizer:
    """A new regularizer: {"kind": "l2", "delta": ..., "penalize_bias": ...} (paper, Eq. 3 left)."""

    regularizer: dict[str, Any]


@dataclass(frozen=True)
class ChangeModel:
    """A new architecture: other degree, features, layers, or another kind (paper, Eq. 3 right)."""

    architecture: dict[str, Any]


Task = AddData | RemoveData | ChangeRegularizer | ChangeModel


@dataclass(frozen=True)
class Change:
    """All tasks of one adaptation, sorted by kind."""

    added: tuple[Data, ...]
    removed: tuple[Data, ...]
    regularizer: dict[str, Any] | None
    architecture: dict[str, Any] | None

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Change:
        """Of several changes of the regularizer or the architecture the last one holds."""
        regularizers = [t.regularizer for t in tasks if isinstance(t, ChangeRegularizer)]
        architectures = [t.architecture for t in tasks if isinstance(t, ChangeModel)]
        return cls(
            tuple(t.data for t in tasks if isinstance(t, AddData)),
            tuple(t.data for t in tasks if isinstance(t, RemoveData)),
            regularizers[-1] if regularizers else None,
            architectures[-1] if architectures else None,
        )
