"""A request for predictions -> its answer. Called by the endpoint and by the fast path."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from core.errors import Invalid
from core.inference.predictions import to_predictions
from core.kprior.model.posterior import Uncertainty
from core.kprior.posterior import NoPosterior
from service import metrics
from service.context import Context
from service.examples.objects import decode_or_refuse
from service.examples.reader import batch_too_large
from service.http.auth import Caller
from service.parsing import json_items
from service.predictions.version_cache import CachedVersion, VersionCache
from service.threads import run_for_body

FIELD = "inputs"
MAX_INLINE_SIZE = 200_000
"""Bytes of a body, or numbers in and out, that are handled in the event loop; more would hold up other requests."""
SHORT_BODY_BYTES = 4096
"""Bytes of a body with a few inputs."""
MAX_INLINE_MULTIPLICATIONS = 10**8
"""Multiplications that are done in the event loop: some milliseconds."""
MAX_PROBABILITIES = 2_000_000
"""In one answer."""


class Head(msgspec.Struct):
    """The part of a body that says which version reads the rest, and what of it is wanted."""

    version: int | None = None
    uncertainty: bool = False


heads = msgspec.json.Decoder(Head)
HEAD_MESSAGES = {"version": "must be the number of a version; without it, the champion predicts"}


@lru_cache(maxsize=256)
def decoder(x: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a body whose inputs are decoded to `x`."""
    fields: list[Any] = [("inputs", list[x]), ("version", int | None, None), ("uncertainty", bool, False)]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields, forbid_unknown_fields=True))


async def predict(body: bytes, name: str, caller: Caller, context: Context, champions: VersionCache) -> bytes:
    """The JSON of the predictions that a body asks for."""
    # a named version is looked for only where one may be named
    asks = b"version" in body or b"uncertainty" in body or b"\\u" in body
    head = (
        decode_or_refuse(lambda: heads.decode(body), code="request_invalid", messages=HEAD_MESSAGES) if asks else Head()
    )
    version, unsure = head.version, head.uncertainty
    if version is not None and not 0 < version < 2**31:
        raise Invalid.at(("version",), "request_invalid", HEAD_MESSAGES["version"])
    loaded = await champions.get(name, version, caller)
    max_batch = context.settings.max_batch
    if len(body) > MAX_INLINE_SIZE:
        return await run_for_body(body, lambda: predict_with(name, loaded, read(loaded, body, max_batch), unsure))
    x = read(loaded, body, max_batch)
    slow = unsure and loaded.model.assessing_work(len(x)) > MAX_INLINE_MULTIPLICATIONS
    if slow or x.size + len(x) * loaded.model.outputs > MAX_INLINE_SIZE:
        return await run_in_threadpool(predict_with, name, loaded, x, unsure)
    return predict_with(name, loaded, x, unsure)


def read(loaded: CachedVersion, body: bytes, max_batch: int) -> NDArray[Any]:
    """The inputs of a body."""
    if len(body) <= json_items.MAX_UNSPLIT_BYTES:
        return read_some(loaded, body, lambda count: check(loaded, count, max_batch))
    parts, count = [], 0
    for part in json_items.pieces(
        body,
        FIELD,
        max_batch,
        loaded.inputs.max_commas,
        lambda count, exactly: check(loaded, count, max_batch, exactly),
        lambda rest: decode_or_refuse(lambda: decoder(msgspec.Raw).decode(rest)),
    ):
        with json_items.shift_errors(FIELD, count):
            parts.append(read_some(loaded, part, lambda _: None))
        count += len(parts[-1])
    return np.concatenate(parts)


def check(loaded: CachedVersion, count: int, max_batch: int, exactly: bool = True) -> None:
    """That there are some inputs, and not too many."""
    if count == 0:
        raise Invalid.at((FIELD,), "batch_empty", "there is no input")
    numbers = max(1, MAX_PROBABILITIES // loaded.model.outputs)
    if count > min(max_batch, numbers):
        raise batch_too_large(count, min(max_batch, numbers), "inputs", exactly)


def read_some(loaded: CachedVersion, body: bytes, check: Callable[[int], None]) -> NDArray[Any]:
    def decode(x: Any) -> list[Any]:
        xs: list[Any] = decode_or_refuse(lambda: decoder(x).decode(body)).inputs
        check(len(xs))
        return xs

    return loaded.inputs.read(decode, lambda one: one, FIELD, few=len(body) < SHORT_BODY_BYTES)[1]


def predict_with(name: str, loaded: CachedVersion, x: NDArray[Any], unsure: bool = False) -> bytes:
    mean, uncertainties = assess(name, loaded, x) if unsure else (predict_means(name, loaded, x), None)
    outputs = to_predictions(loaded.model.spec, mean, uncertainties)
    return msgspec.json.encode({"version": loaded.model.number, "outputs": outputs})


def assess(name: str, loaded: CachedVersion, x: NDArray[Any], field: str = FIELD) -> tuple[NDArray[Any], Uncertainty]:
    """The predicted means (n, K), which are finite and counted, and how sure they are."""
    require_posterior(loaded)
    mean, found = loaded.model.assess(x)
    require_finite(np.concatenate([mean, *found], 1), field)
    count(name, loaded, x)
    return mean, found


def require_posterior(loaded: CachedVersion) -> None:
    """Invalid, if nobody can say how sure a version is. The first time, this is where it is found out."""
    try:
        loaded.posterior()
    except NoPosterior as error:
        message = f"how sure this model is cannot be said: {error}"
        raise Invalid.at(("uncertainty",), "uncertainty_unsupported", message) from error


def predict_means(name: str, loaded: CachedVersion, x: NDArray[Any], field: str = FIELD) -> NDArray[Any]:
    """The predicted means (n, K), which are finite and counted."""
    mean = loaded.model.predict_means(x)
    require_finite(mean, field)
    count(name, loaded, x)
    return mean


def require_finite(mean: NDArray[Any], field: str) -> None:
    """Invalid, if the numbers of an input are not all finite."""
    if not math.isfinite(mean.sum()) and not (finite := np.isfinite(mean)).all():
        i = int((~finite).any(1).argmax())
        raise Invalid.at((field, i), "number_not_finite", "the model's output for it is not a finite number")


def count(name: str, loaded: CachedVersion, x: NDArray[Any]) -> None:
    """Count predictions, and categories that nobody has seen."""
    metrics.PREDICTIONS.inc(len(x))
    metrics.count_unseen(name, loaded.inputs.count_other(x))
