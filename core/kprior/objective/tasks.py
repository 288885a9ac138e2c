"""The adaptation tasks. Any number of them combine in one solve, by adding their terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.kprior.data.examples import Data
from core.kprior.data.schema_conversion import Conversion
from core.kprior.model.spec import Architecture, Loss, Regularizer, TableInput, Target


@dataclass(frozen=True)
class AddData:
    """Add examples to the training data (paper, Eq. 2 left).

    Examples
    --------
    >>> import torch
    >>> from core.kprior import AddData, Examples
    >>> new = Examples(torch.tensor([100]), torch.zeros(1, 2), torch.ones(1, 1))
    >>> AddData([new]).data[0].key.tolist()  # a list of chunks, or an object that streams them anew
    [100]
    """

    data: Data


@dataclass(frozen=True)
class RemoveData:
    """Remove examples from the training data (paper, Eq. 2 right).

    They must equal those that the model was trained on, because their terms are subtracted from sums.

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
    """New columns of a table. Rows of the memory are given in terms of the old columns, all others in terms of the new.

    Examples
    --------
    >>> from core.kprior import ChangeInput
    >>> from core.kprior.data.schema_conversion import input_conversion
    >>> age, visits = {"name": "age", "type": "number"}, {"name": "visits", "type": "number"}
    >>> old, new = {"kind": "table", "columns": [age]}, {"kind": "table", "columns": [age, visits]}
    >>> ChangeInput(new, input_conversion(old, new)).conversion.columns[0].index
    0
    """

    input: TableInput
    conversion: Conversion
    """Converts old rows to the new columns."""


@dataclass(frozen=True)
class ChangeTarget:
    """Other classes, or classes instead of a binary target.

    Examples
    --------
    >>> from core.kprior import ChangeTarget
    >>> ChangeTarget({"kind": "classes", "values": [0, 1, 2]}, (0.0, 1.0)).classes
    (0.0, 1.0)
    """

    target: Target
    classes: tuple[float, ...]
    """The number of the new class for each old class; NaN if a class is dropped."""


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
class TaskSet:
    """All tasks of one adaptation, sorted by kind."""

    added: tuple[Data, ...]
    removed: tuple[Data, ...]
    regularizer: Regularizer | None
    architecture: Architecture | None

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> TaskSet:
        """Sort the tasks. If several change the regularizer or the architecture, the last one applies."""
        regularizers = [t.regularizer for t in tasks if isinstance(t, ChangeRegularizer)]
        architectures = [t.architecture for t in tasks if isinstance(t, ChangeModel)]
        return cls(
            tuple(t.data for t in tasks if isinstance(t, AddData)),
            tuple(t.data for t in tasks if isinstance(t, RemoveData)),
            regularizers[-1] if regularizers else None,
            architectures[-1] if architectures else None,
        )
