"""Weights as a safetensors file over REST: which numbers are accepted."""

from __future__ import annotations

import base64

import httpx
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from tests.service.expect import add, refused, rows
from tests.stack import Stack

LAYERS = [{"kind": "linear", "outputs": 2}, {"kind": "batch_norm"}, {"kind": "linear", "outputs": 1}]
NETWORK = {"kind": "sequential", "layers": LAYERS}
MEAN, COUNTER = "body.1.running_mean", "body.1.num_batches_tracked"
FILE = {"w": torch.zeros(13), MEAN: torch.zeros(2), "body.1.running_var": torch.ones(2), COUNTER: torch.tensor(3)}


def send(api: httpx.Client, name: str, tensors: dict[str, Tensor], **other: object) -> httpx.Response:
    body = {"tensors": base64.b64encode(save(tensors)).decode(), **other}
    return api.post(f"/v1/models/{name}/imports", json=body)


@pytest.fixture
def network(stack: Stack, api: httpx.Client) -> str:
    name = stack.model(architecture=NETWORK)
    add(api, name, rows(3))
    return name


@pytest.mark.parametrize(
    ("part", "kind", "said"),
    [
        ("w", torch.float8_e4m3fn, "16-, 32- or 64-bit floats"),
        ("w", torch.int64, "16-, 32- or 64-bit floats"),
        (MEAN, torch.float8_e5m2, "must contain 16-, 32- or 64-bit floats"),
        (MEAN, torch.complex64, "must contain 16-, 32- or 64-bit floats"),
        (COUNTER, torch.float8_e4m3fn, "must contain integers"),
    ],
    ids=str,
)
def test_other_numbers_than_floats_and_counters_are_refused(
    api: httpx.Client, network: str, part: str, kind: torch.dtype, said: str
) -> None:
    answer = send(api, network, {**FILE, part: FILE[part].to(kind)})
    refused(answer, 422, "weights_invalid")
    assert said in answer.text


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_floats_of_each_common_size_are_accepted(api: httpx.Client, network: str, kind: torch.dtype) -> None:
    made = {name: t.to(kind) if t.is_floating_point() else t for name, t in FILE.items()}
    assert send(api, network, made).status_code == 202


def test_units_are_refused_with_a_file(api: httpx.Client, network: str) -> None:
    answer = send(api, network, FILE, units={"mean": [0.0], "scale": [1.0]})
    refused(answer, 422, "request_invalid")
    assert "leave them out with `tensors`" in answer.text
