"""The classes that an older version had examples of: only these are compared.

A new class takes probability from the others. On the older rows of the gate, none of which has the class, this looks
like a deterioration. The gate therefore compares the predictions that both versions give for a row whose class is known
to be one of the older ones: p_k / sum p over these classes. Labels are independent of each other, so those without
examples are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy.orm import Session
from torch import Tensor

from core.kprior import Data, State
from core.kprior.data.schema_conversion import target_then
from core.kprior.model.spec import Spec, values_of
from core.ledger.layouts import Classes, LayoutChange, steps_until
from core.ledger.untrained_classes import has_all_classes, untrained_classes, untrained_labels
from core.quality.label_rows import restrict
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.quality.scoring import overlay, score
from core.tables.versions import Version


@dataclass(frozen=True)
class KnownClasses:
    """Which classes an older version had examples of; at least one class of the newer version is not among them."""

    own: Tensor | None
    """(K_old,) mask of the older version's classes; None if it had examples of all of them."""
    later: Tensor
    """(K_new,) mask of the newer version's classes."""

    @classmethod
    def of(
        cls, session: Session, model_id: int, version: Version, old: Spec, new: Spec, at: int, change: Classes = None
    ) -> KnownClasses | None:
        """For an older version with the spec `old`, and a newer one with the spec `new` at the position `at`.

        `change` converts the classes at that position to those of `new`, if they differ, as in a preview. None if the
        newer version has no other classes than those that the older version had examples of.
        """
        before, after = values_of(old["target"]), values_of(new["target"])
        if new["target"]["kind"] != "classes" or old["target"]["kind"] not in ("binary", "classes"):
            return None
        steps = steps_until(session, model_id, at, version.position)
        between = reduce(LayoutChange.then, steps).target if steps else None
        places = target_then(between, change) or tuple(map(float, range(len(before))))
        own = torch.ones(len(before), dtype=torch.bool)
        if not has_all_classes(version, old):
            own[untrained_classes(session, model_id, old, version.position)] = False
        later = torch.zeros(len(after), dtype=torch.bool)
        trained = [int(place) for place, has in zip(places, own.tolist(), strict=True) if has and not math.isnan(place)]
        later[trained] = True
        if bool(later.all()):
            return None
        return cls(None if bool(own.all()) else own, later)

    def has(self, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(n,) which rows of the newer version have a known class."""
        known: NDArray[np.bool_] = self.later.numpy()[y.astype(np.int64)]
        return known

    def restrict(
        self, scored: ScoredRows, state: State, rows: Data, earlier: NDArray[np.bool_], options: MetricOptions
    ) -> ScoredRows:
        """What a version with the newer classes predicts for `rows`, of which the `earlier` ones have known classes."""
        where = np.flatnonzero(earlier)
        _, (among_known,) = score([state], rows, options, self.later)
        return overlay(scored, where, among_known.take(where))


def only_known_labels(session: Session, model_id: int, version: Version, spec: Spec, old: ScoredRows) -> ScoredRows:
    """What an older version with this spec predicted, for the labels that it had examples of."""
    if spec["target"]["kind"] != "labels" or has_all_classes(version, spec):
        return old
    untrained = untrained_labels(session, model_id, spec, version.position)
    names = [str(value) for code, value in enumerate(values_of(spec["target"])) if code not in untrained]
    return restrict(old, names) if names else old
