"""Short texts with a binary target that depends on their words."""

from __future__ import annotations

import numpy as np

WORDS = {1: ["excellent", "great", "friendly", "quick"], 0: ["terrible", "late", "broken", "rude"]}
OTHERS = ["the", "parcel", "arrived", "service", "was", "and", "driver", "shop", "order", "today"]


def reviews(n: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts, and whether they sound pleased; a tenth of the labels is wrong."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    texts = [" ".join([*rng.choice(OTHERS, 4), *rng.choice(WORDS[int(label)], 2)]) for label in labels]
    flipped = rng.random(n) < 0.1
    return texts, np.where(flipped, 1 - labels, labels).tolist()
