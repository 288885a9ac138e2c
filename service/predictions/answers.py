"""A request for predictions -> its answer. Called by the endpoint and by the express lane."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from starlette.concurrency import run_in_threadpool

from core.errors import Invalid, TooLarge
from service import metrics
from service.auth import Caller
from service.context import Context
from service.examples.formats import decoded
from service.predictions.champions import Champions, Loaded

WHERE = "inputs"
SMALL = 200_000
"""Bytes of a body that is answered at once; handing more to a thread costs less than making others wait."""


class Head(msgspec.Struct):
    """The part of a body that says which version reads the rest."""

    version: int | None = None


heads = msgspec.json.Decoder(Head)


@lru_cache(maxsize=256)
def decoder(x: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a body whose inputs are decoded to `x`."""
    fields: list[Any] = [("inputs", list[x]), ("version", int | None, None)]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields, forbid_unknown_fields=True))


async def answer(body: bytes, name: str, caller: Caller, context: Context, champions: Champions) -> bytes:
    """The JSON of the predictions that a body asks for."""
    # a named version is looked for only where one may be named
    version = decoded(lambda: heads.decode(body)).version if b'"version"' in body else None
    if version is not None and not 0 < version < 2**31:
        raise Invalid.at(("version",), "request_invalid", "must be the number of a version")
    loaded = champions.known(name, version, caller)
    if loaded is None:
        loaded = await run_in_threadpool(champions.find, name, version, caller)
    if len(body) > SMALL:
        return await run_in_threadpool(predict, loaded, body, context.settings.max_batch)
    return predict(loaded, body, context.settings.max_batch)


def predict(loaded: Loaded, body: bytes, most: int) -> bytes:
    def decode(x: Any) -> list[Any]:
        xs: list[Any] = decoded(lambda: decoder(x).decode(body)).inputs
        if not xs:
            raise Invalid.at((WHERE,), "batch_empty", "there is no input")
        if len(xs) > most:
            raise TooLarge("batch_too_large", f"{len(xs)} inputs; {most} are allowed in one request.")
        return xs

    _, x = loaded.inputs.read(decode, lambda one: one, WHERE)
    means = loaded.served.means(x.reshape(len(x), *loaded.shape))
    if not math.isfinite(means.sum()) and not (finite := np.isfinite(means)).all():
        i = int((~finite).any(1).argmax())
        raise Invalid.at((WHERE, i), "number_not_finite", "the model's output for it is not a finite number")
    metrics.PREDICTIONS.inc(len(x))
    return msgspec.json.encode({"version": loaded.served.number, "outputs": loaded.targets.outputs(means)})
