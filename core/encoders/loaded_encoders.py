"""The frozen encoders that one process uses, in the service for predictions and in workers for examples."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.encoders.plugins import load_plugin
from core.encoders.sandbox import ChildFailed, ModelRefused, Sandbox, SandboxClosed
from core.encoders.uploads import read_file
from core.errors import Conflict, Unavailable
from core.inference.frozen_encoders import Encode
from core.inference.onnx_inputs import to_tensors
from core.inference.text_hashing import encode_texts, hashing_encoder
from core.kprior.model.spec import Input, PredictorSpec, frozen_encoder
from core.ledger.encodings import key_of
from core.settings import Settings
from core.versions.store import Store

MAX_CHILDREN = 4
"""Child processes with ONNX models that one process keeps."""
ROWS_PER_STEP = 256
"""Inputs that an ONNX model encodes at a time, within the time limit."""
MAX_CRASHES = 3
"""Crashes and timeouts after which the encoder, rather than an input, is to blame."""


class FrozenEncoders:
    """Encoders that are ready for use, one per process. It is thread-safe."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self._ready: dict[str, Encode] = {}
        self._children: OrderedDict[str, Sandbox] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, spec: PredictorSpec) -> Encode | None:
        """The encoder of a model; None if it has none.

        It returns NaN for inputs that it cannot encode.
        """
        encoder = frozen_encoder(spec)
        if encoder is None:
            return None
        if encoder["kind"] == "onnx":
            return OnnxEncoder(partial(self.child_of, encoder["digest"]), spec["input"], encoder["features"])
        key = key_of(encoder)
        with self._lock:
            if key not in self._ready:
                if encoder["kind"] == "hashing":
                    self._ready[key] = hashing_encoder(encoder["features"])
                else:
                    self._ready[key] = plugin_encoder(encoder["name"], encoder["digest"])
            return self._ready[key]

    def child_of(self, digest: str) -> Sandbox:
        """The child process of an ONNX model. The least recently used one ends if there are too many."""
        with self._lock:
            if digest not in self._children:
                read, settings = partial(read_file, self.store, digest), self.settings
                self._children[digest] = Sandbox(read, settings.encoder_memory, settings.encoder_timeout)
            self._children.move_to_end(digest)
            found, evicted = self._children[digest], []
            while len(self._children) > MAX_CHILDREN:
                evicted.append(self._children.popitem(last=False)[1])
        # outside the lock: a child may be busy
        for child in evicted:
            child.close()
        return found

    def close(self) -> None:
        """End all child processes."""
        with self._lock:
            children = list(self._children.values())
            self._children.clear()
        for child in children:
            child.close()


class OnnxEncoder:
    """Encodes the raw inputs of a model with an ONNX model in a child process."""

    def __init__(self, find_child: Callable[[], Sandbox], given: Input, features: int) -> None:
        # found again for each step: it may have been ended meanwhile
        self.find_child, self.given, self.features = find_child, given, features

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        made = np.empty((len(x), self.features), np.float32)
        crashes = 0
        todo = [slice(i, min(i + ROWS_PER_STEP, len(x))) for i in range(0, len(x), ROWS_PER_STEP)]
        while todo:
            which = todo.pop()
            child = self.find_child()
            try:
                load(child)
                found = child.run(to_tensors(child.inputs, self.given, x[which]))
                if found.shape[1] != self.features:
                    raise ModelRefused(f"It returned {found.shape[1]} features instead of {self.features}.")
                made[which] = found
                continue
            except SandboxClosed:
                todo.append(which)
                continue
            except ModelRefused:
                pass
            except ChildFailed as error:
                crashes += 1
                if crashes >= MAX_CRASHES:
                    raise Unavailable("encoder_failed", f"The encoder of the model does not work. {error}") from error
            # an input that cannot be encoded must not prevent the others
            middle = (which.start + which.stop) // 2
            if middle == which.start:
                made[which] = np.nan
            else:
                todo += [slice(which.start, middle), slice(middle, which.stop)]
        return made


def load(child: Sandbox) -> None:
    """Load the model of a child process; raises Unavailable if that fails, as no input is to blame."""
    try:
        child.load()
    except (ModelRefused, ChildFailed) as error:
        raise Unavailable("encoder_failed", f"The encoder of the model cannot be loaded. {error}") from error


def plugin_encoder(name: str, digest: str) -> Encode:
    """The encoder of an installed package, if it is the one that the model was created with."""
    plugin = load_plugin(name)
    if plugin.digest != digest:
        message = (
            f"The installed encoder {name!r} is not the one that the model was trained with: its digest is "
            f"{plugin.digest}, and the model's is {digest}. Install that one, or change the model's architecture."
        )
        raise Conflict("encoder_changed", message)
    return encode_texts(plugin.encode, plugin.features)
