"""The adaptation tasks. Any number of them combine in one solve, by adding their terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.kprior.data.conversion import Conversion
from core.kprior.data.examples import Data
from core.kprior.model.spec import Architecture, Loss, Regularizer, TableInput, Target


@dataclass(frozen=True)
class AddData:
    """Examples that the new model has learnt from, too (paper, Eq. 2 left).

    Examples
    --------
    >>> import torch
    >>> from core.kprior import AddData, Examples
    >>> new = Examples(torch.tensor([100]), torch.zeros(1, 2), torch.ones(1, 1))
    >>> AddData([new]).data[0].key.tolist()  # a list of chunks, or whatever streams them anew
    [100]
    """

    data: Data


@dataclass(frozen=True)
class RemoveData:
    """Examples that the state stands for and the new model must not (paper, Eq. 2 right).

    They are given whole, as they were when the model learnt from them: their terms are taken out of sums.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, RemoveData
    >>> old = Examples(torch.tensor([3]), torch.zeros(1, 2), torch.ones(1, 1))
    >>> RemoveData([old]).data[0].key.tolist()
    [3]
    """

    data: Data


@dataclass(frozen=True)
class ChangeRegularizer:
    """A new regularizer (paper, Eq. 3 left).

    Examples
    --------
    >>> from core.kprior import ChangeRegularizer
    >>> ChangeRegularizer({"kind": "l2", "delta": 0.5, "penalize_bias": True}).regularizer["delta"]
    0.5
    """

    regularizer: Regularizer


@dataclass(frozen=True)
class ChangeModel:
    """A new architecture: other degree, features, layers, or another kind (paper, Eq. 3 right).

    Examples
    --------
    >>> from core.kprior import ChangeModel
    >>> ChangeModel({"kind": "mlp", "hidden": [50]}).architecture["kind"]
    'mlp'
    """

    architecture: Architecture


@dataclass(frozen=True)
class ChangeInput:
    """New columns of a table. Rows of the memory are given as they were; all others as the new input has them.

    Examples
    --------
    >>> from core.kprior import ChangeInput
    >>> from core.kprior.data.conversion import input_conversion
    >>> age, visits = {"name": "age", "type": "number"}, {"name": "visits", "type": "number"}
    >>> old, new = {"kind": "table", "columns": [age]}, {"kind": "table", "columns": [age, visits]}
    >>> ChangeInput(new, input_conversion(old, new)).conversion.columns[0].index
    0
    """

    input: TableInput
    conversion: Conversion
    """Of the rows from before."""


@dataclass(frozen=True)
class ChangeTarget:
    """Other classes; or classes, where there were 0 and 1.

    Examples
    --------
    >>> from core.kprior import ChangeTarget
    >>> ChangeTarget({"kind": "classes", "values": [0, 1, 2]}, (0.0, 1.0)).classes
    (0.0, 1.0)
    """

    target: Target
    classes: tuple[float, ...]
    """The new class of each old one, by their numbers; NaN for one that is gone."""


@dataclass(frozen=True)
class ChangeLoss:
    """Another loss between the same outputs and targets.

    Examples
    --------
    >>> from core.kprior import ChangeLoss
    >>> ChangeLoss({"kind": "huber", "threshold": 2.0}).loss["kind"]
    'huber'
    """

    loss: Loss


Task = AddData | RemoveData | ChangeRegularizer | ChangeModel | ChangeInput | ChangeTarget | ChangeLoss


@dataclass(frozen=True)
class Change:
    """All tasks of one adaptation, sorted by kind."""

    added: tuple[Data, ...]
    removed: tuple[Data, ...]
    regularizer: Regularizer | None
    architecture: Architecture | None

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
