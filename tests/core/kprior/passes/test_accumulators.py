"""What every accumulator promises: shards, merged in order, give the sums of the whole, also by way of bytes."""

from __future__ import annotations

import pytest
import torch

from core.kprior import Examples, MemoryPolicy, State, train
from core.kprior.certificate.bounds import PredictionChange
from core.kprior.data.codec import Tensors, pack, unpack
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import (
    Accumulator,
    Combined,
    accumulator_of,
    add_chunks,
    add_shards,
    config_of,
    leave_out_repeated,
)
from core.kprior.passes.gradient import Gradient
from core.kprior.passes.last_layer import LastLayerSum
from core.kprior.passes.loss import Loss
from core.kprior.passes.moments import Moments, TargetMoments
from core.kprior.passes.row_count import Count
from core.kprior.passes.row_losses import RowLosses
from core.kprior.passes.sampled_hessian import SampledHessian
from core.kprior.passes.second_order import CurvatureSum, SurrogateSum
from core.quality.evaluation import Evaluation
from core.quality.version_comparison import PairedEvaluation
from tests.core.kprior.problems import FAMILIES, LINEAR, QUADRATIC, examples_of, l2, rows, spec_of

CPU = torch.device("cpu")


def state_of(kind: str, delta: float = 1.0) -> State:
    return train(spec_of(kind, 3, LINEAR, l2(delta)), [examples_of(kind, 60, 3)]).state


def accumulators(kind: str) -> list[Accumulator]:
    linear = Predictor(spec_of(kind, 3, QUADRATIC))
    network = Predictor(spec_of(kind, 3, {"kind": "mlp", "hidden": [4]}), seed=1)
    w, v = linear.initial_weights() + 0.1, network.initial_weights()
    H = torch.eye(linear.size, dtype=w.dtype)
    alone = [
        Loss(linear, w, with_hessian=True, careful=True, origin=0 * w),
        Loss(network, v),
        CurvatureSum(network, v, "kronecker"),
        SurrogateSum(network, v),
        Gradient(linear, w, careful=True, centre=torch.zeros(linear.size // linear.family.outputs - 1).double()),
        SampledHessian(linear, w, 0.5),
        MemorySelection(MemoryPolicy(fraction=0.2), 12, linear, w, H, 0),
        PredictionChange(linear, w, 0.1, 0.01 * w, H),
        PredictionChange(linear, w, 0.1),
        RowLosses(network, v, double=True),
        LastLayerSum(network, v),
        Count(linear, w),
        Moments([0, 2]),
        TargetMoments([0]),
        Evaluation(state_of(kind)),
        PairedEvaluation(state_of(kind), state_of(kind, 9.0)),
    ]
    return [*alone, Combined(*(total.empty() for total in alone[:4]))]


def shards(data: Examples) -> list[list[Examples]]:
    return [rows(data, 0, 20).chunks(7), [], rows(data, 20, 60).chunks(9)]


def assert_same(one: Tensors, other: Tensors, exact: bool) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(other[name], tensor, equal_nan=True, **tolerance)


@pytest.mark.parametrize("number", range(17))
@pytest.mark.parametrize("kind", FAMILIES)
def test_shards_encoded_as_bytes_give_the_same_bits(kind: str, number: int) -> None:
    total, data = accumulators(kind)[number], examples_of(kind, 60, 3)
    config, merged = pack(*config_of(total)), total.empty()
    for shard in shards(data):
        stranger = accumulator_of(*unpack(config), CPU)
        merged.merge(unpack(pack({}, add_chunks(shard, stranger).sums()))[1])
    assert_same(add_shards(shards(data), total).sums(), merged.sums(), exact=True)


@pytest.mark.parametrize("number", range(17))
@pytest.mark.parametrize("kind", FAMILIES)
def test_shards_give_the_sums_of_the_whole(kind: str, number: int) -> None:
    total, data = accumulators(kind)[number], examples_of(kind, 60, 3)
    whole = add_shards([[chunk for shard in shards(data) for chunk in shard]], total.empty())
    assert_same(whole.sums(), add_shards(shards(data), total).sums(), exact=False)


def test_weights_that_several_need_are_sent_once() -> None:
    w = torch.ones(3)
    kept, same = leave_out_repeated({"0.w": w, "1.w": w.view(3), "1.other": torch.ones(3)})
    assert set(kept) == {"0.w", "1.other"}
    assert same == {"1.w": "0.w"}
