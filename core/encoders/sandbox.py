"""Runs an ONNX encoder in a child process with limits of memory and time.

A model that crashes, hangs or needs too much memory ends its child process and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from core.tables.documents import TensorDocument

MAX_THREADS = 4
PIPE_BYTES = 2**20
"""What Linux permits by default. Features of 256 rows do not fit into the usual 64 KiB."""
ROOT = Path(__file__).parents[2]
CHILD = "import sys; sys.path.append(sys.argv[1]); from core.encoders.onnx_child import main; main()"
"""The code that the child runs. It finds our modules in `ROOT`; `-I` ignores all other additions to the path."""


class Description(TypedDict):
    """What an ONNX model takes and returns."""

    inputs: list[TensorDocument]
    outputs: list[TensorDocument]
    features: int


class ModelRefused(Exception):
    """The child process refused the model or its inputs, for the reason in the message."""


class ChildFailed(Exception):
    """The child process ended, or did not respond in time."""


class SandboxClosed(Exception):
    """The sandbox was closed, because another encoder needed its place."""


def enlarge(*pipes: IO[bytes] | None) -> None:
    """Let inputs and features of usual sizes fit into pipes, so that the processes wait for each other less often."""
    for pipe in pipes:
        with suppress(AttributeError, OSError):  # on Linux only, and within the system's limits
            fcntl.fcntl(cast(IO[bytes], pipe), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class Sandbox:
    """One ONNX model in a child process, which is started when it is needed. It is thread-safe."""

    def __init__(self, read: Callable[[], bytes], memory: int, seconds: float) -> None:
        # the file is read again whenever a child starts: it may be large, and only the child needs it
        self.read, self.memory, self.seconds = read, memory, seconds
        self._lock = threading.Lock()
        self._closed = False
        self._child: subprocess.Popen[bytes] | None = None
        self.inputs: list[TensorDocument] = []
        """The inputs of the model, once the child has loaded it."""

    def check(self) -> Description:
        """Check the model against the list of permitted operators, load it, and run it once."""
        with self._lock:
            try:
                return cast(Description, self._load(count=True))
            finally:
                self._stop()

    def load(self) -> None:
        """Load the model, unless the child has loaded it already."""
        with self._lock:
            self._start()

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """The first output of the model for n rows: (n, D).

        Raises
        ------
        ModelRefused
            If the model cannot be run on these inputs.
        ChildFailed
            If it crashed, or took too long.
        """
        with self._lock:
            self._start()
            described, data = [], []
            for name, values in inputs.items():
                text = values.dtype == object
                data.append(json.dumps(values.tolist()).encode() if text else np.ascontiguousarray(values).tobytes())
                about = {"dtype": values.dtype.str if not text else "object", "shape": values.shape}
                described.append({"name": name, "size": len(data[-1]), **about})
            header = self._ask({"op": "run", "inputs": described}, b"".join(data))
            rows, features = header["shape"]
            made = self._read(4 * rows * features, time.monotonic() + self.seconds)
            return np.frombuffer(made, np.float32).reshape(rows, features)

    def close(self) -> None:
        """End the child process for good."""
        with self._lock:
            self._closed = True
            self._stop()

    def _start(self) -> None:
        if self._closed:
            raise SandboxClosed
        if self._child is None or self._child.poll() is not None:
            self.inputs = self._load(count=False)["inputs"]

    def _load(self, count: bool) -> dict[str, Any]:
        self._stop()
        content = self.read()
        try:
            # an environment and an empty folder of its own: no secrets, no options for libraries, no files
            with tempfile.TemporaryDirectory() as folder:  # removed once the child is in it
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-c", CHILD, str(ROOT), str(self.memory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    cwd=folder,
                )
                enlarge(self._child.stdin, self._child.stdout)
            threads = min(MAX_THREADS, os.cpu_count() or 1)
            return self._ask({"op": "load", "count": count, "threads": threads, "size": len(content)}, content)
        except BaseException:  # a child without a model is of no use
            self._stop()
            raise

    def _ask(self, header: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Send a request and return the header of the response."""
        assert self._child is not None
        assert self._child.stdin is not None
        until = time.monotonic() + self.seconds
        text = json.dumps(header).encode()
        self._write(struct.pack("<Q", len(text)) + text + data, until)
        size = struct.unpack("<Q", self._read(8, until))[0]
        found: dict[str, Any] = json.loads(self._read(size, until))
        if not found["ok"]:
            raise ModelRefused(found["error"])
        return found

    def _write(self, data: bytes, until: float) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        file, rest = self._child.stdin.fileno(), memoryview(data)
        os.set_blocking(file, False)
        while rest:
            _, ready, _ = select.select([], [file], [], max(0.0, until - time.monotonic()))
            try:
                if not ready:
                    raise TimeoutError
                rest = rest[os.write(file, rest[: 2**20]) :]
            except BlockingIOError:
                continue
            except (OSError, TimeoutError) as error:
                raise self._failed(until) from error

    def _read(self, size: int, until: float) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        file, parts, left = self._child.stdout.fileno(), [], size
        while left:
            ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
            part = os.read(file, min(left, 2**20)) if ready else b""
            if not part:
                raise self._failed(until)
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _failed(self, until: float) -> ChildFailed:
        late = time.monotonic() >= until
        self._stop()
        if late:
            return ChildFailed(f"It took more than {self.seconds:g} seconds (AMEND_ENCODER_TIMEOUT).")
        return ChildFailed("Its process ended, probably because it needed more memory than AMEND_ENCODER_MEMORY.")

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
