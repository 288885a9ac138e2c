"""The classes that an older version had examples of: only these are compared.

A new class takes probability from the others. On the older rows of the gate, none of which has the class, this looks
like a deterioration. The gate therefore compares the predictions that both versions give for a row whose class is known
to be one of the older ones: p_k / sum p over these classes. Labels are independent of each other, so those without
examples are left out.

The first examples of a class are often few, and more follow. So a class is also left out if the last confirmed version
had no examples of it, as long as it had examples of most classes.
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
from core.ledger.spec_history import spec_at
from core.ledger.untrained_classes import has_all_classes, untrained_classes, untrained_labels
from core.quality.label_rows import restrict
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.quality.scoring import overlay, score
from core.tables.models import Model
from core.tables.versions import FIRST, Version
from core.versions.queries import first_served


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
        after = values_of(new["target"])
        if new["target"]["kind"] != "classes" or old["target"]["kind"] not in ("binary", "classes"):
            return None
        places, own = find_trained(session, model_id, version, old, at, change)
        model = session.get_one(Model, model_id)
        confirmed = first_served(session, model_id, model.confirmed or FIRST)
        if confirmed is not None and confirmed.position < version.position:
            spec = spec_at(session, model_id, model.spec, confirmed.position)
            if spec["target"]["kind"] in ("binary", "classes"):
                theirs, trained = find_trained(session, model_id, confirmed, spec, at, change)
                accepted = {place for place, has in zip(theirs, trained.tolist(), strict=True) if has}
                if 2 * len(accepted) > len(after):
                    own &= torch.tensor([math.isnan(place) or place in accepted for place in places])
        later = torch.zeros(len(after), dtype=torch.bool)
        later[[int(p) for p, has in zip(places, own.tolist(), strict=True) if has and not math.isnan(p)]] = True
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


def find_trained(
    session: Session, model_id: int, version: Version, spec: Spec, at: int, change: Classes
) -> tuple[tuple[float, ...], Tensor]:
    """What each class of a version with a spec became after the position `at` and `change`, NaN if it was dropped; and
    the (K,) mask of the classes that the version had examples of."""
    steps = steps_until(session, model_id, at, version.position)
    between = reduce(LayoutChange.then, steps).target if steps else None
    count = len(values_of(spec["target"]))
    own = torch.ones(count, dtype=torch.bool)
    if not has_all_classes(version, spec):
        own[untrained_classes(session, model_id, spec, version.position)] = False
    return target_then(between, change) or tuple(map(float, range(count))), own


def only_known_labels(session: Session, model_id: int, version: Version, spec: Spec, old: ScoredRows) -> ScoredRows:
    """What an older version with this spec predicted, for the labels that it and the confirmed version had examples of.

    The first examples of a label are often few. When more follow, all others are negatives whose loss increases.
    """
    if spec["target"]["kind"] != "labels":
        return old
    names = known_labels(session, model_id, version, spec)
    model = session.get_one(Model, model_id)
    confirmed = first_served(session, model_id, model.confirmed or FIRST)
    if confirmed is not None and confirmed.position < version.position:
        theirs = spec_at(session, model_id, model.spec, confirmed.position)
        if theirs["target"]["kind"] == "labels":
            accepted = set(known_labels(session, model_id, confirmed, theirs))
            names = [name for name in names if name in accepted] or names
    return restrict(old, names) if names else old


def known_labels(session: Session, model_id: int, version: Version, spec: Spec) -> list[str]:
    """The labels of a version with this spec that it had examples of."""
    untrained = [] if has_all_classes(version, spec) else untrained_labels(session, model_id, spec, version.position)
    return [str(value) for code, value in enumerate(values_of(spec["target"])) if code not in untrained]
