"""The process that runs an ONNX encoder, with limits of its own. `sandbox.py` starts it.

It reads requests from standard input and writes responses to standard output: a header as JSON, preceded by its length,
and then the bytes of tensors. Of the project it imports only `onnx_check.py`. It has no environment, and can neither
write files nor outlive the process that started it.
"""

import json
import math
import os
import resource
import struct
import sys
from typing import Any, BinaryIO

from core.encoders.onnx_check import Refused, check_file

MAX_FEATURES = 65_536
DUMMY_ROWS = 2
NUMPY = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
}
"""Types of inputs."""


class Encoder:
    """An ONNX model that is ready to run."""

    def __init__(self, content: bytes, threads: int) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the module is imported
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        options.add_session_config_entry("session.load_model_format", "ONNX")  # never what the first bytes suggest
        try:
            self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many types
            if "alloc" in str(error).lower():
                raise MemoryError from error
            raise Refused(f"onnxruntime cannot load the model: {first_line(error)}") from error
        self.inputs = [describe(one) for one in self.session.get_inputs()]
        self.outputs = [describe(one) for one in self.session.get_outputs()]
        unknown = next((one for one in self.inputs if one["type"] not in NUMPY), None)
        if unknown is not None:
            raise Refused(f"The input {unknown['name']!r} has the unsupported type {unknown['type']}.")
        if self.outputs[0]["type"] not in ("tensor(float)", "tensor(double)", "tensor(int64)", "tensor(int32)"):
            raise Refused(f"The first output {self.outputs[0]['name']!r} must be a tensor of numbers.")
        # a model that was exported for a single row is run row by row
        self.single = any(one["shape"][:1] == [1] for one in self.inputs)

    def run(self, inputs: dict[str, Any]) -> Any:
        import numpy as np

        rows = len(next(iter(inputs.values())))
        try:
            if self.single:
                each = [self._run({name: values[i : i + 1] for name, values in inputs.items()}) for i in range(rows)]
                made = np.concatenate(each)
            else:
                made = self._run(inputs)
        except Refused:
            raise
        except Exception as error:
            if "alloc" in str(error).lower():
                raise MemoryError from error
            raise Refused(f"onnxruntime failed: {first_line(error)}") from error
        if made.ndim == 0 or len(made) != rows:
            raise Refused("The first output must have one row of numbers for each row of the input.")
        return np.ascontiguousarray(made.reshape(rows, -1), np.float32)

    def _run(self, inputs: dict[str, Any]) -> Any:
        return self.session.run([self.outputs[0]["name"]], inputs)[0]

    def count_features(self) -> int:
        """The number of features, found by running the model on zeros, or as its output declares it."""
        import numpy as np

        dummies = {}
        for one in self.inputs:
            shape = [size if isinstance(size, int) else 1 for size in one["shape"]]
            shape[:1] = [1 if self.single else DUMMY_ROWS] if shape else []
            if math.prod(shape) > 2**26:
                raise Refused(f"The input {one['name']!r} is too large.")
            kind = NUMPY[one["type"]]
            dummies[one["name"]] = np.full(shape, "", object) if kind == "object" else np.zeros(shape, kind)
        try:
            count = int(self.run(dummies).shape[1])
        except Refused:
            declared = self.outputs[0]["shape"][1:]
            if not declared or not all(isinstance(size, int) for size in declared):
                raise
            count = math.prod(declared)
        if not 1 <= count <= MAX_FEATURES:
            raise Refused(f"The encoder has {count} features; it can have 1 to {MAX_FEATURES}.")
        return count


def describe(one: Any) -> dict[str, Any]:
    return {"name": one.name, "type": one.type, "shape": list(one.shape)}


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__


def read_tensors(header: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    import numpy as np

    inputs = {}
    for one in header["inputs"]:
        data = source.read(one["size"])
        if one["dtype"] == "object":
            inputs[one["name"]] = np.array(json.loads(data), object).reshape(one["shape"])
        else:
            inputs[one["name"]] = np.frombuffer(data, one["dtype"]).reshape(one["shape"])
    return inputs


def send(target: BinaryIO, header: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(header).encode()
    target.write(struct.pack("<Q", len(text)) + text + data)
    target.flush()


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Respond to requests until the input ends."""
    encoder: Encoder | None = None
    while head := source.read(8):
        header = json.loads(source.read(struct.unpack("<Q", head)[0]))
        try:
            if header["op"] == "load":
                encoder = Encoder(check_file(source.read(header["size"])), header["threads"])
                described = {"inputs": encoder.inputs, "outputs": encoder.outputs}
                if header["count"]:
                    described["features"] = encoder.count_features()  # type: ignore[assignment]
                send(target, {"ok": True, **described})
            else:
                inputs = read_tensors(header, source)
                assert encoder is not None, "a model is loaded first"
                made = encoder.run(inputs)
                send(target, {"ok": True, "shape": list(made.shape)}, made.tobytes())
        except Refused as error:
            send(target, {"ok": False, "error": str(error)})
        except MemoryError:
            send(target, {"ok": False, "error": "The encoder needs more memory than AMEND_ENCODER_MEMORY allows."})


def main() -> None:
    memory = int(sys.argv[-1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # responses go to a copy: nothing that a library prints can end up among them
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(sys.stdin.buffer, target)
