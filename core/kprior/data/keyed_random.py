"""Random numbers that depend on a key and a seed alone, so that every process draws the same number for a row."""

import numpy as np
import torch
from torch import Tensor


def uniform(key: Tensor, seed: int) -> Tensor:
    """Hash each key (n,) and the seed to a pseudorandom number in (0, 1] (splitmix64).

    The number does not depend on how data are split, and different seeds give independent numbers.

    >>> first, again = uniform(torch.tensor([5, 6]), 0), uniform(torch.tensor([6, 5]), 0)
    >>> bool((first == again.flip(0)).all()), bool(((first > 0) & (first <= 1)).all())
    (True, True)
    """
    with np.errstate(over="ignore"):
        z = key.cpu().numpy().astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy(((z >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53)
