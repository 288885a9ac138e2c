"""A sentence-transformer model as an encoder of Amend: texts in, one embedding of length 1 for each text out.

The environment variable `SENTENCE_MODEL` names a folder with `tokenizer.json` and `model.onnx`, as the model pages of
sentence-transformers offer them (all-MiniLM-L6-v2: `tokenizer.json` and `onnx/model.onnx`). Nothing is downloaded.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

MAX_TOKENS = 256


class SentenceEncoder:
    """What Amend needs: `features`, `files` and `encode`."""

    def __init__(self) -> None:
        folder = Path(os.environ["SENTENCE_MODEL"])
        self.files = [folder / "tokenizer.json", folder / "model.onnx"]
        self.tokenizer = Tokenizer.from_file(str(self.files[0]))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()
        self.session = onnxruntime.InferenceSession(str(self.files[1]), providers=["CPUExecutionProvider"])
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.features = self.encode(["test"]).shape[1]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts: the mean of the token embeddings, scaled to length 1."""
        tokens = self.tokenizer.encode_batch(list(texts))
        mask = np.array([one.attention_mask for one in tokens], np.int64)
        given = {
            "input_ids": np.array([one.ids for one in tokens], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([one.type_ids for one in tokens], np.int64),
        }
        [embeddings] = self.session.run(None, {name: given[name] for name in self.inputs})[:1]
        weight = mask[:, :, None].astype(np.float32)
        mean = (embeddings * weight).sum(1) / np.maximum(weight.sum(1), 1)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
