"""Features of texts: counts of words by a hash of each word. Nothing is learnt, and nothing is stored."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kprior.model.text_storage import to_texts

Numbers = NDArray[Any]
TEXTS_PER_STEP = 500


def hashing_encoder(features: int) -> Callable[[Numbers], Numbers]:
    """Counts of words by a hash of each word, scaled to length 1.

    >>> import numpy as np
    >>> from core.kprior.model.text_storage import to_array
    >>> z = hashing_encoder(16)(to_array(["to be or not to be", ""]))
    >>> z.shape, round(float(np.linalg.norm(z[0])), 6), float(np.abs(z[1]).sum())
    ((2, 16), 1.0, 0.0)
    """
    from sklearn.feature_extraction.text import HashingVectorizer  # takes a second to import

    vectorizer = HashingVectorizer(n_features=features, dtype=np.float32)
    return encode_texts(lambda texts: vectorizer.transform(texts).toarray(), features)


def hash_words(texts: Sequence[str], features: int) -> Iterator[tuple[list[str], Numbers, Numbers]]:
    """For each text: its words, the feature that each is hashed to, and what it adds to that feature.

    >>> words, places, values = next(hash_words(["to be or not to be"], 1024))
    >>> words, [round(abs(float(value)), 2) for value in values]
    (['to', 'be', 'or', 'not'], [0.63, 0.63, 0.32, 0.32])
    """
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer

    analyze, hasher = HashingVectorizer().build_analyzer(), FeatureHasher(features, input_type="string")
    for text in texts:
        counts = Counter(analyze(text))
        hashed = hasher.transform([[word] for word in counts] or [[]])
        values = hashed.data * np.array(list(counts.values()))
        length = np.linalg.norm(np.bincount(hashed.indices, values, minlength=1))
        yield list(counts), hashed.indices, values / (length or 1.0)


def encode_texts(encode: Callable[[Sequence[str]], Any], features: int) -> Callable[[Numbers], Numbers]:
    """An encoder of stored texts, from a function of texts. Texts for which the function fails become NaN."""

    def encode_some(texts: Sequence[str]) -> Numbers:
        try:
            return np.asarray(encode(texts), np.float32).reshape(len(texts), features)
        except Exception:  # code of others may raise anything
            if len(texts) == 1:
                return np.full((1, features), np.nan, np.float32)
            half = len(texts) // 2
            return np.concatenate([encode_some(texts[:half]), encode_some(texts[half:])])

    def encode_stored(x: Numbers) -> Numbers:
        texts = to_texts(x)
        starts = range(0, len(texts), TEXTS_PER_STEP)
        return np.concatenate([encode_some(texts[i : i + TEXTS_PER_STEP]) for i in starts])

    return encode_stored
