"""Small bodies that would take gigabytes, and large ones that would take thirty times their size.

python -m tests.service.hostile     reads all of them within a limit of memory, and says what came of each
"""

from __future__ import annotations

import base64
import json
import resource
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from core.errors import AmendError
from tests.service.bodies import ARROW, CSV, NDJSON, PARQUET, stream

MEGABYTE = 2**20
ALLOWED = 150 * MEGABYTE
"""More than any of the bodies should take, several times less than each took."""
LARGE = 12_000_000
WIDTH = 784
ONE_ROW = (
    "c-nnZO-jQ+6n<|S#!$M5l@~Hlq?-;F+G2%(lx*C%%A&Y*Q3!3sLjO#wwmWx<cn0wRo}qg;o<PJShzAhgqzwuMhZ!dM^8L+__R&d`"
    "EXq?pBtcLFKmdpcs7S>cLk>xjCB}qVhys{ylbzAcV0MdIHM+TbU*fOA=9T;Yyk!t2Kc}B_m~O_!A?L5l+UcKMHSocc)9!gZj7S0%"
    "D#8=}UIju!^o56WR?09iZ<c2b`qLS)P%v*R9>l|VG^^}}&pY<E$+8&61-L?$RG^_m1?7Wul<_2n-HzMQ4Q*FzTo#NGa4i7=E2PqC"
    "Gb0l#*&)u;#4L#|(xbW$X6k#?XB$pc{jtQSm$xOV<LrjkuGYE?F48VNx2GS4{=!X<tc&|9T%m2=V6Qxhl8eiDR_{(G^(aZk*X64?"
    "nfAw{@`2yjZ!}fFcea{v%9(Bc5q<zxcv3$"
)
"""A Parquet file of 525 bytes, as pyarrow writes it: one row, whose x is a list of 200 000 000 zeros."""


def repeated(values: pa.Array, count: int) -> pa.DictionaryArray:
    """A column that has the same value again and again."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), values)


def dictionary_of_lists(count: int = 20_000) -> bytes:
    """2 kB; 3 GB when the dictionary is resolved."""
    x = repeated(pa.array([[0.0] * 20_000]), count)
    made = pa.table({"id": repeated(pa.array(["a"]), count), "x": x, "y": repeated(pa.array([0]), count)})
    return stream(made, options=pa.ipc.IpcWriteOptions(compression="zstd"))


def compressed(count: int = 20_000) -> bytes:
    """Columns of zeros that are unpacked to 125 MB."""
    zeros = pa.array(np.zeros(count))
    columns = {f"f{i}": zeros for i in range(WIDTH)}
    made = pa.table({"id": repeated(pa.array(["a"]), count), "y": zeros, **columns})
    return stream(made, options=pa.ipc.IpcWriteOptions(compression="zstd"))


def one_row() -> bytes:
    return zlib.decompress(base64.b85decode("".join(ONE_ROW)))


def filled(head: bytes, part: bytes, tail: bytes) -> bytes:
    return head + part * ((LARGE - len(head)) // len(part)) + tail


FEATURES = b"id,y," + b",".join(b"f%d" % i for i in range(WIDTH)) + b"\n"
EXAMPLES = b'{"examples":['
INPUTS = b'{"inputs":['
IMAGE = {"kind": "image", "shape": [1, 28, 28], "dtype": "float32"}
PIXELS = {**IMAGE, "dtype": "uint8"}
IMAGE_OF_ZEROS = b'{"id":"a","y":0,"x":[[' + b",".join([b"[" + b"0," * 27 + b"0]"] * 28) + b"]]}"
VECTOR = {"kind": "vector", "dim": WIDTH}
JSON = "application/json"

BODIES: dict[str, tuple[str, dict[str, Any], Callable[[], bytes], str]] = {
    "a dictionary of lists": (ARROW, VECTOR, dictionary_of_lists, "example_invalid"),
    "compressed columns": (ARROW, VECTOR, compressed, "body_too_large"),
    "one row of Parquet": (PARQUET, VECTOR, one_row, "body_too_large"),
    "one vector": (
        JSON,
        VECTOR,
        lambda: filled(EXAMPLES + b'{"id":"a","y":0,"x":[', b"0,", b"0]}]}"),
        "example_shape_mismatch",
    ),
    "one image": (
        JSON,
        IMAGE,
        lambda: filled(EXAMPLES + b'{"id":"a","y":0,"x":[[', b"[0],", b"[0]]]}]}"),
        "example_shape_mismatch",
    ),
    "many images": (
        JSON,
        PIXELS,
        lambda: filled(EXAMPLES, IMAGE_OF_ZEROS + b",", IMAGE_OF_ZEROS + b"]}"),
        "read",
    ),
    "many small examples": (
        JSON,
        VECTOR,
        lambda: filled(EXAMPLES, b'{"id":"a","x":[0],"y":0},', b'{"id":"a","x":[0],"y":0}]}'),
        "batch_too_large",
    ),
    "one line": (NDJSON, VECTOR, lambda: filled(b'{"id":"a","y":0,"x":[', b"0,", b"0]}"), "example_shape_mismatch"),
    "many lines": (NDJSON, VECTOR, lambda: filled(b"", b'{"id":"a","x":[0],"y":0}\n', b""), "batch_too_large"),
    "many rows": (CSV, VECTOR, lambda: filled(FEATURES, b"a,1" + b",0" * WIDTH + b"\n", b""), "read"),
    "inputs that are none": ("inputs", VECTOR, lambda: filled(INPUTS, b"0,", b"0]}"), "batch_too_large"),
    "one input": ("inputs", VECTOR, lambda: filled(INPUTS + b"[", b"0,", b"0]]}"), "example_shape_mismatch"),
    "two lists": ("inputs", VECTOR, lambda: filled(b'{"inputs":[[0]],"inputs":[', b"0,", b"0]}"), "request_invalid"),
}


def read(kind: str, given: dict[str, Any], body: bytes) -> str:
    """What is said of a body."""
    from service.examples import formats
    from service.examples.readers import ExampleReader
    from service.parsing.inputs import inputs_of
    from service.predictions import predict

    spec = {"input": given, "target": {"kind": "binary"}}
    try:
        if kind == "inputs":
            loaded: Any = SimpleNamespace(inputs=inputs_of(spec), model=SimpleNamespace(outputs=1))
            predict.read(loaded, body, 100_000)
        else:
            formats.read(ExampleReader(spec, 100_000, 64 * MEGABYTE, b"secret"), kind, body)
    except AmendError as error:
        return error.code
    except Exception as error:
        return type(error).__name__
    return "read"


def used() -> int:
    """Bytes of memory that this process has asked for."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))


def main() -> None:
    read(JSON, VECTOR, b"{}")  # everything is loaded by then
    for name, (kind, given, make, _) in BODIES.items():
        body = make()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used() + ALLOWED, hard))
        said = read(kind, given, body)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        print(json.dumps([name, said]), flush=True)


if __name__ == "__main__":
    main()
