"""From the body of a request to the parameters that are stored with an analysis."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from core.analyses.cross_validation import with_value
from core.analyses.requests import encode_array, encode_batch
from core.analyses.tuning_values import default_deltas
from core.errors import Invalid, Malformed
from core.kprior.model.spec import Spec, frozen_encoder
from core.ledger.batch import Batch
from core.ledger.layouts import Layout
from core.ledger.spec_history import with_part
from core.ledger.subject_hashes import subject_hash
from core.models.policy import HoldoutPolicy
from core.models.spec import ArchitectureSchema, RegularizerSchema
from core.models.validation import check_buildable, check_class_weight
from service.analyses.schemas import InfluenceRequest, LabellingRequest, PreviewRequest, TuningRequest, adapter
from service.context import Context
from service.examples.json_objects import decode_or_refuse, read_json
from service.examples.readers import ExampleReader, batch_too_large
from service.http.json_bodies import parse_json
from service.parsing.inputs import inputs_of
from service.parsing.json_items import rename_errors

architectures: TypeAdapter[Any] = TypeAdapter(ArchitectureSchema)


@dataclass(frozen=True)
class ParsedRequest:
    """A valid request."""

    body: Any
    """One of the schemas."""
    stored: dict[str, Any]
    """Its parameters as they are stored."""
    pool: NDArray[Any] | None = None
    """The inputs of a labelling request, which are not stored."""


def parse(body: bytes) -> Any:
    """The request of a body, without knowledge of the model."""
    given = parse_json(body)
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        places = [{**found, "loc": ("body", *found["loc"])} for found in error.errors()]
        raise RequestValidationError(places, body=given) from None


def prepare(body: Any, spec: Spec, policy: HoldoutPolicy, context: Context) -> ParsedRequest:
    """The parameters of a request for a model."""
    stored: dict[str, Any] = body.model_dump(
        mode="json", exclude_none=True, exclude={"kind", "add", "change", "inputs"}
    )
    pool = None
    match body:
        case PreviewRequest():
            stored |= preview_parameters(body, spec, policy, context)
        case TuningRequest():
            stored["values"] = tuning_values(body, spec, context)
        case InfluenceRequest():
            stored.pop("on")
            if body.on != "holdout":
                stored["inputs"] = encode_array(read_inputs(body.on.inputs, spec, context))
        case LabellingRequest() if body.inputs is not None:
            pool = read_inputs(body.inputs, spec, context)
        case _:
            pass
    return ParsedRequest(body, stored, pool)


def preview_parameters(body: PreviewRequest, spec: Spec, policy: HoldoutPolicy, context: Context) -> dict[str, Any]:
    """The rows and the change of a preview."""
    stored: dict[str, Any] = {}
    settings, after = context.settings, spec
    if body.remove is not None and body.remove.subjects is not None:
        hashes = [subject_hash(name, settings.secret, settings.caseless_subjects) for name in body.remove.subjects]
        stored["remove"] = {"subjects": [found.hex() for found in hashes]}
    if body.change is not None:
        parts = body.change.parts(spec["input"])
        stored["change"] = [(kind.value, value) for kind, value in parts]
        for kind, value in parts:
            after = with_part(after, kind, value)
        check_buildable(after, settings.max_parameters)
        check_encoder(spec, after)
    if body.add is not None:
        batch = read_examples(body.add, after, context)
        stored["add"] = encode_batch(batch, model_inputs(batch.x, after, context, "add"), policy)
    return stored


def check_encoder(spec: Spec, after: Spec) -> None:
    """Refuse a change after which all examples would have to be encoded again."""
    before, later = frozen_encoder(spec), frozen_encoder(after)
    if before != later or (before is not None and spec["input"] != after["input"]):
        message = "A change of a frozen encoder or of its inputs cannot be previewed: it encodes all examples again."
        raise Invalid("preview_unsupported", message)


def read_examples(given: list[Any], spec: Spec, context: Context) -> Batch:
    """Examples of a preview, each with a label."""
    settings = context.settings
    limits = (settings.max_batch, settings.max_body_bytes, settings.secret, settings.caseless_subjects)
    reader = ExampleReader(spec, *limits, unlabelled=False)
    with rename_errors("examples", "add"):
        return read_json(reader, encode_again({"examples": given}))


def encode_again(given: Any) -> bytes:
    """Data of a request as JSON, for the readers of other endpoints.

    Raises Malformed for what Python's parser accepts although it is not JSON: NaN, infinity and half of a surrogate
    pair. These readers reject it as well.
    """
    try:
        return json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise Malformed("body_malformed", "The body is not valid JSON.") from None


def read_inputs(given: list[Any], spec: Spec, context: Context) -> NDArray[Any]:
    """(n, ...) inputs."""
    if len(given) > context.settings.max_batch:
        raise batch_too_large(len(given), context.settings.max_batch, "inputs")
    inputs, text = inputs_of(spec), encode_again(given)

    def decode(x: Any) -> list[Any]:
        found: list[Any] = decode_or_refuse(
            lambda: msgspec.json.Decoder(list[x]).decode(text), "inputs", code="request_invalid"
        )
        return found

    return model_inputs(inputs.read(decode, lambda one: one, "inputs")[1], spec, context, "inputs")


def model_inputs(x: NDArray[Any], spec: Spec, context: Context, field: str) -> NDArray[Any]:
    """(n, ...) inputs as the model sees them: the features of its frozen encoder, if it has one."""
    encode = context.encoders.find(spec)
    if encode is None or not len(x):
        return x.reshape(len(x), *Layout(spec).shape)
    features = encode(x.reshape(len(x), -1))
    failed = np.flatnonzero(~np.isfinite(features).all(1))
    if len(failed):
        raise Invalid.at((field, int(failed[0])), "encoding_failed", "the model's encoder failed for this input")
    return features


def tuning_values(body: TuningRequest, spec: Spec, context: Context) -> list[float]:
    """The values to compare, each of which gives a valid spec."""
    values = body.values
    if values is None:
        values = default_deltas(spec)
    for i, value in enumerate(values):
        try:
            made = with_value(spec, body.parameter, value)
            RegularizerSchema.model_validate(made["regularizer"])
            architectures.validate_python(made["architecture"])
            if not 0 <= value < math.inf or (body.parameter.startswith("class_weight") and value == 0):
                raise ValueError
            check_class_weight(made)
            check_buildable(made, context.settings.max_parameters)
        except (Invalid, ValueError) as error:
            if isinstance(error, Invalid) and error.code == "parameter_unknown":
                raise
            raise Invalid.at(("values", i), "value_invalid", f"is not a valid value of {body.parameter}") from error
    return values
