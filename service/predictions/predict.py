"""Computes the response to a prediction request, for the endpoint and for the fast path."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.errors import Invalid
from core.inference.explanations import Unexplainable
from core.inference.predictions import to_predictions
from core.kprior.model.uncertainty import Uncertainty
from core.kprior.state.posterior import NoPosterior
from service import prometheus_counters
from service.examples.json_objects import decode_or_refuse
from service.examples.readers import batch_too_large
from service.http.auth import Caller
from service.http.body_threads import run_for_body
from service.http.unit_of_work import UnitOfWork
from service.parsing import json_items
from service.predictions.recording import Head, Recorder, recording_of
from service.predictions.version_cache import CachedVersion, VersionCache

FIELD = "inputs"
MAX_INLINE_SIZE = 200_000
"""Bytes of a body, or numbers in and out, up to which the event loop predicts; more would delay other requests."""
SHORT_BODY_BYTES = 4096
"""Up to this size a body has few inputs."""
MAX_INLINE_MULTIPLICATIONS = 10**8
"""Multiplications up to which the event loop computes uncertainty: some milliseconds."""
MAX_PROBABILITIES = 2_000_000
"""Maximum number of probabilities in one response."""


heads = msgspec.json.Decoder(Head)
OPTIONS = (b"version", b"uncertainty", b"explain", b"record", b"ids", b"subjects", b"\\u")
"""What a body contains that has any options."""
HEAD_MESSAGES = {"version": "must be a version number; omit it to predict with the champion"}


@lru_cache(maxsize=256)
def decoder(x: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a body whose inputs are decoded to `x`."""
    options: list[Any] = [(field.name, field.type, field.default) for field in msgspec.structs.fields(Head)]
    return msgspec.json.Decoder(msgspec.defstruct("Body", [("inputs", list[x]), *options], forbid_unknown_fields=True))


class Extras(NamedTuple):
    """What a response contains besides the predictions."""

    uncertainty: bool = False
    explain: bool = False


PLAIN = Extras()


async def predict(
    body: bytes, name: str, caller: Caller, versions: VersionCache, write: UnitOfWork
) -> bytes | Response:
    """The JSON response to a body; a complete response if anything was written to the database."""
    # decode the options only if the body can contain any
    head = (
        decode_or_refuse(lambda: heads.decode(body), code="request_invalid", messages=HEAD_MESSAGES)
        if any(option in body for option in OPTIONS)
        else Head()
    )
    version, extras, context = head.version, Extras(head.uncertainty, head.explain), write.context
    max_batch = context.settings.max_batch
    recording = recording_of(head, caller, max_batch)
    if version is not None and not 0 < version < 2**31:
        raise Invalid.at(("version",), "request_invalid", HEAD_MESSAGES["version"])
    loaded = await versions.get(name, version, caller)
    if recording is not None:

        def predict_and_record() -> Response:
            unseen: list[str | None] = []
            x = read(loaded, body, max_batch, unseen)
            mean, content = respond(name, loaded, x, extras)
            recorder = Recorder(name, loaded, recording, caller, versions, write, len(body))
            return recorder.store(x, unseen, mean, content)

        return await run_for_body(body, predict_and_record)
    content = await compute(body, name, loaded, max_batch, extras)
    if write.key is not None:
        return await run_in_threadpool(write, caller, 200, lambda _session: content, None)
    return content


async def compute(body: bytes, name: str, loaded: CachedVersion, max_batch: int, extras: Extras) -> bytes:
    """The JSON of the predictions, computed in a thread if that takes long."""
    if len(body) > MAX_INLINE_SIZE:
        return await run_for_body(body, lambda: predict_with(name, loaded, read(loaded, body, max_batch), extras))
    x = read(loaded, body, max_batch)
    # a child process encodes the inputs, and text may take long
    slow = loaded.model.encode is not None or extras.explain
    slow = slow or (extras.uncertainty and loaded.model.assessing_work(len(x)) > MAX_INLINE_MULTIPLICATIONS)
    if slow or x.size + len(x) * loaded.model.outputs > MAX_INLINE_SIZE:
        return await run_in_threadpool(predict_with, name, loaded, x, extras)
    return predict_with(name, loaded, x, extras)


def read(loaded: CachedVersion, body: bytes, max_batch: int, unseen: list[str | None] | None = None) -> NDArray[Any]:
    """The inputs of a body. The texts of each input's unseen category values are appended to `unseen`."""
    if len(body) <= json_items.MAX_UNSPLIT_BYTES:
        return read_some(loaded, body, lambda count: check(loaded, count, max_batch), unseen)
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
            parts.append(read_some(loaded, part, lambda _: None, unseen))
        count += len(parts[-1])
    return np.concatenate(parts)


def check(loaded: CachedVersion, count: int, max_batch: int, exactly: bool = True) -> None:
    """Raise an error if there are no inputs, or too many."""
    if count == 0:
        raise Invalid.at((FIELD,), "batch_empty", "must not be empty")
    numbers = max(1, MAX_PROBABILITIES // loaded.model.outputs)
    if count > min(max_batch, numbers):
        raise batch_too_large(count, min(max_batch, numbers), "inputs", exactly)


def read_some(
    loaded: CachedVersion, body: bytes, check: Callable[[int], None], unseen: list[str | None] | None
) -> NDArray[Any]:
    def decode(x: Any) -> list[Any]:
        xs: list[Any] = decode_or_refuse(lambda: decoder(x).decode(body)).inputs
        check(len(xs))
        return xs

    xs, x = loaded.inputs.read(decode, lambda one: one, FIELD, few=len(body) < SHORT_BODY_BYTES)
    if unseen is not None:
        unseen += loaded.inputs.unseen_in_json(lambda: xs, x) or [None] * len(x)
    return x


def predict_with(name: str, loaded: CachedVersion, x: NDArray[Any], extras: Extras = PLAIN) -> bytes:
    return respond(name, loaded, x, extras)[1]


def respond(name: str, loaded: CachedVersion, x: NDArray[Any], extras: Extras) -> tuple[NDArray[Any], bytes]:
    """Predicted means (n, K), and the JSON of the predictions."""
    mean, uncertainties = assess(name, loaded, x) if extras.uncertainty else (predict_means(name, loaded, x), None)
    outputs = to_predictions(loaded.model.spec, mean, uncertainties, loaded.model.threshold)
    if extras.explain:
        try:
            explained = loaded.model.explain(x)
        except Unexplainable as error:
            raise Invalid.at(("explain",), "explanation_unsupported", str(error)) from error
        for output, found in zip(outputs, explained, strict=True):
            output["contributions"] = found
    return mean, msgspec.json.encode({"version": loaded.model.number, "outputs": outputs})


def assess(name: str, loaded: CachedVersion, x: NDArray[Any], field: str = FIELD) -> tuple[NDArray[Any], Uncertainty]:
    """Predicted means (n, K) and their uncertainty, checked to be finite and counted."""
    require_posterior(loaded)
    mean, uncertainty = loaded.model.assess(x)
    require_finite(np.concatenate([mean, *uncertainty], 1), field, loaded)
    count(name, loaded, x)
    return mean, uncertainty


def require_posterior(loaded: CachedVersion) -> None:
    """Raise Invalid if uncertainty is not available for a version. The first call computes the posterior."""
    try:
        loaded.posterior()
    except NoPosterior as error:
        message = f"uncertainty is not available for this model: {error}"
        raise Invalid.at(("uncertainty",), "uncertainty_unsupported", message) from error


def predict_means(name: str, loaded: CachedVersion, x: NDArray[Any], field: str = FIELD) -> NDArray[Any]:
    """Predicted means (n, K), checked to be finite and counted."""
    mean = loaded.model.predict_means(x)
    require_finite(mean, field, loaded)
    count(name, loaded, x)
    return mean


def require_finite(mean: NDArray[Any], field: str, loaded: CachedVersion) -> None:
    """Raise Invalid if an output is not finite. The frozen encoder returns NaN for inputs that it cannot encode."""
    if not math.isfinite(mean.sum()) and not (finite := np.isfinite(mean)).all():
        i = int((~finite).any(1).argmax())
        if loaded.model.encode is not None:
            raise Invalid.at((field, i), "encoding_failed", "the model's encoder failed for this input")
        raise Invalid.at((field, i), "number_not_finite", "the model's output for this input is not a finite number")


def count(name: str, loaded: CachedVersion, x: NDArray[Any]) -> None:
    """Count predictions and unseen categories."""
    prometheus_counters.PREDICTIONS.inc(len(x))
    prometheus_counters.count_unseen(name, loaded.inputs.count_other(x))
