"""Sums over shards: the same bits whoever adds up which shard, and the truth whatever the shards are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reselection import reselect
from core.kprior import Examples, MemoryPolicy, Result, Select, State, Training, certify, train
from core.kprior import curvature as curvature_room
from core.kprior.curvature import BACKENDS
from core.kprior.data.codec import pack, unpack
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.objective import terms
from core.kprior.passes.accumulator import A, Accumulator, Combined, accumulator_of, add_chunks, config_of
from core.kprior.passes.loss import Loss
from core.kprior.passes.moments import fit_encoder
from core.kprior.passes.partitioned import accumulate
from core.kprior.passes.second_order import CurvatureSum, SurrogateSum
from tests.core.kprior.problems import FAMILIES, LINEAR, QUADRATIC, TENTH, ShardedExamples, examples_of, spec_of

MLP = {"kind": "mlp", "hidden": [4]}
CPU = torch.device("cpu")


class RemoteShards(ShardedExamples):
    """Data whose shards are added up by strangers, in any order, who know nothing but bytes."""

    seed = 0
    asked = 0

    def is_distributed(self, total: Accumulator) -> bool:
        return True

    def accumulate(self, total: A) -> A:
        self.asked += 1
        config = pack(*config_of(total))
        order = list(range(len(self._shards)))
        random.Random(self.seed + self.asked).shuffle(order)
        answers = {}
        for i in order:
            other = accumulator_of(*unpack(config), CPU)
            answers[i] = pack({}, add_chunks(self._shards[i], other).sums())
        for i in sorted(answers):
            total.merge(unpack(answers[i])[1])
        return total


def split(data: Examples, ends: Sequence[int], chunk: int = 7) -> list[list[Examples]]:
    """Shards that end at these rows, in chunks."""
    edges = [0, *sorted({end for end in ends if 0 < end < len(data)}), len(data)]
    return [data.take(torch.arange(a, b)).chunks(chunk) for a, b in zip(edges, edges[1:], strict=False)]


def run_all(spec: dict[str, Any], data: ShardedExamples, **options: Any) -> list[Any]:
    """All that training, another selection and a certificate give."""
    trained = train(spec, data, training=Training(max_epochs=2, batch_size=16), **options)
    policy = options["policy"]
    again: Result = reselect(trained.state, data, policy, seed=3)
    figures: list[Any] = []
    states: list[State | None] = [trained.state, again.state]
    if trained.state.predictor.linear:
        measured = certify(trained.state, trained.memory, data, holdout=[next(iter(data))])
        figures += [vars(measured.certificate), measured.value]
        states += [measured.state, measured.refined]
    figures += [None if state is None else state.to_bytes() for state in states]
    return [*figures, trained.memory.key.tolist(), trained.cost.backward_passes]


@settings(max_examples=3)
@given(st.lists(st.integers(1, 79), min_size=1, max_size=6, unique=True), st.integers(0, 100))
@pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC, MLP], ids=["linear", "quadratic", "mlp"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_several_processes_compute_the_same_bits_as_one(
    kind: str, architecture: dict[str, Any], ends: list[int], seed: int
) -> None:
    shards = split(examples_of(kind, 80, 3), ends)
    spec = spec_of(kind, 3, architecture)
    strangers = RemoteShards(shards)
    strangers.seed = seed
    assert run_all(spec, strangers, policy=TENTH) == run_all(spec, ShardedExamples(shards), policy=TENTH)
    assert strangers.asked >= 2


@pytest.mark.parametrize("select", Select)
@pytest.mark.parametrize("curvature", BACKENDS)
def test_so_they_do_with_every_selection_and_curvature(select: Select, curvature: str) -> None:
    shards = split(examples_of("classes", 80, 3), [13, 40, 66])
    for balance in (False, True):
        options = {"policy": MemoryPolicy(0.2, select=select, balance=balance)}
        options |= {"curvature": curvature}
        spec = spec_of("classes", 3, LINEAR if curvature == "blocks" else MLP)
        assert run_all(spec, RemoteShards(shards), **options) == run_all(spec, ShardedExamples(shards), **options)


@pytest.mark.parametrize("kind", FAMILIES)
def test_so_they_do_with_a_wide_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature_room, "MAX_FULL_SIZE", 0)
    shards, spec = split(examples_of(kind, 80, 3), [13, 40, 66]), spec_of(kind, 3)
    strangers = RemoteShards(shards)
    assert run_all(spec, strangers, policy=TENTH) == run_all(spec, ShardedExamples(shards), policy=TENTH)
    assert strangers.asked >= 2


def test_rows_that_are_not_cached_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    shards, spec = split(examples_of("binary", 80, 3), [13, 40, 66]), spec_of("binary", 3)
    cached = run_all(spec, ShardedExamples(shards), policy=TENTH)
    monkeypatch.setattr(terms, "CACHE_BYTES", 0)
    assert run_all(spec, ShardedExamples(shards), policy=TENTH) == cached


@pytest.mark.parametrize("kind", BACKENDS)
def test_any_cut_gives_the_sums_of_the_whole(kind: str) -> None:
    data = examples_of("classes", 60, 3)
    predictor = Predictor(spec_of("classes", 3, LINEAR if kind == "blocks" else MLP), seed=1)
    w = predictor.initial_weights()

    def sum_up(shards: list[list[Examples]]) -> tuple[Loss, CurvatureSum, SurrogateSum]:
        totals = Loss(predictor, w), CurvatureSum(predictor, w, kind), SurrogateSum(predictor, w)
        accumulate(ShardedExamples(shards), Combined(*totals))
        return totals

    whole, apart = sum_up([[data]]), sum_up(split(data, [1, 2, 30, 59]))
    assert whole[0].count == apart[0].count == 60
    assert apart[0].value == pytest.approx(whole[0].value)
    torch.testing.assert_close(apart[0].gradient, whole[0].gradient)
    if whole[2].surrogate is not None and apart[2].surrogate is not None:
        torch.testing.assert_close(apart[2].surrogate.gram, whole[2].surrogate.gram)
    dense = whole[1].curvature.dense(predictor.size)
    torch.testing.assert_close(apart[1].curvature.dense(predictor.size), dense, rtol=1e-3, atol=1e-3)


def test_strangers_fit_an_encoder() -> None:
    x = 1e6 + examples_of("number", 50, 2).x
    x[::3, 0] = torch.nan
    data = Examples(torch.arange(50), x, x[:, 1:])
    columns = [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}]
    alone, shared = TableEncoder(columns), TableEncoder(columns)
    fit_encoder(alone, ShardedExamples(split(data, [3, 20])))
    fit_encoder(shared, RemoteShards(split(data, [3, 20])))
    assert torch.equal(alone.mean, shared.mean)
    assert torch.equal(alone.scale, shared.scale)
