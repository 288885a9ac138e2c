"""The membership-inference audit: can removed examples be told apart from unseen ones by their loss?"""

import torch
from torch import Tensor

from core.kprior.data.examples import Data
from core.kprior.model.predictor import Predictor
from core.kprior.passes.row_losses import row_losses


def membership_auc(predictor: Predictor, w: Tensor, suspects: Data, strangers: Data) -> float:
    """How well removed examples can be told apart from unseen ones by their loss.

    Parameters
    ----------
    predictor, w
        The model, and its weights (P,).
    suspects
        Removed examples, or examples that are about to be removed.
    strangers
        Examples that the model was never trained on. Both should come from the same population; otherwise the result
        reflects the difference between the populations.

    Returns
    -------
    float
        The probability that a suspect has a smaller loss than a stranger (ties count half); 0.5 if they are alike.

    Raises
    ------
    ValueError
        If there are no suspects or no strangers.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, Predictor, membership_auc
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}, "architecture": {"kind": "linear"}}
    >>> predictor, w = Predictor(spec), torch.tensor([2.0, 0.0], dtype=torch.float64)  # predicts 2 x
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> fitted = Examples(torch.arange(2), x, 2 * x)
    >>> missed = Examples(torch.arange(2), x, 2 * x + 1)
    >>> membership_auc(predictor, w, [fitted], [missed]), membership_auc(predictor, w, [fitted], [fitted])
    (1.0, 0.5)
    """
    return auc(row_losses(predictor, w, suspects), row_losses(predictor, w, strangers))


def auc(a: Tensor, b: Tensor) -> float:
    """The probability that a loss of `a` is smaller than one of `b`; ties count half.

    >>> auc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    if len(a) == 0 or len(b) == 0:
        raise ValueError("The audit needs both suspects and strangers.")
    ranked = b.sort().values
    above = len(b) - torch.searchsorted(ranked, a, right=True)
    equal = torch.searchsorted(ranked, a, right=True) - torch.searchsorted(ranked, a, right=False)
    return float((above.double() + 0.5 * equal.double()).mean() / len(b))
