"""A version's weights ready to answer: the predictor alone, without what adaptations need."""

from __future__ import annotations

from core.kprior import State
from core.kprior.model.spec import Spec
from core.models.means import Means


class Served(Means):
    """The means of one version."""

    def __init__(self, number: int, data: bytes) -> None:
        state = State.from_bytes(data)
        super().__init__(state.predictor, state.w)
        self.number = number
        self.spec: Spec = state.spec
