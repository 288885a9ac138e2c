"""Memory selection: unbiased, of the size asked for, the same however the stream is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from core.kprior import Examples, Memory, MemoryPolicy, Select, Training, train
from core.kprior.curvature import Full
from core.kprior.data.keyed_random import uniform
from core.kprior.memory.sampling import PrioritySampler
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.families import classes_of
from core.kprior.model.gauge import fill_gauge, shift_directions
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from tests.core.kprior.problems import EVERYTHING, FAMILIES, examples_of, l2, rows, spec_of

DIM = 3


def scores_of(examples: Examples) -> Tensor:
    """Uneven, and unlike what is summed."""
    return examples.x[:, 0].exp()


def keep(examples: Examples, size: int, seed: int, weight: Tensor | None = None) -> tuple[Examples, Tensor]:
    selector = PrioritySampler(size, True, seed)
    selector.offer(examples, scores_of(examples), weight)
    taken = selector.take()
    assert taken is not None
    return taken


@pytest.mark.parametrize("weighted", [False, True])
def test_priority_sampling_is_unbiased(weighted: bool) -> None:
    examples = examples_of("number", 80, DIM)
    weight = 1 + 3 * torch.rand(80, generator=torch.Generator().manual_seed(1)).double() if weighted else None
    v = torch.ones(80).double() if weight is None else weight
    truth = (v[:, None] * examples.x).sum(0)
    estimates = []
    for seed in range(2000):
        chosen, w = keep(examples, 12, seed, weight)
        estimates.append((w[:, None] * chosen.x).sum(0))
    sums = torch.stack(estimates)
    error = sums.std(0) / len(sums) ** 0.5
    assert bool(((sums.mean(0) - truth).abs() <= 4 * error).all())
    assert bool((error < 0.03 * (v[:, None] * examples.x.abs()).sum(0)).all())  # enough seeds to tell


@pytest.mark.parametrize("cut", [[80], [1, 79], [40, 40], [7] * 11 + [3]])
def test_selection_does_not_depend_on_how_the_stream_is_cut(cut: list[int]) -> None:
    examples = examples_of("number", 80, DIM)
    truth, weight = keep(examples, 12, 5)
    parts = list(torch.arange(80).split(cut))
    chunked = PrioritySampler(12, True, 5)
    merged = PrioritySampler(12, True, 5)
    for part in reversed(parts):
        chunk = examples.take(part)
        chunked.offer(chunk, scores_of(chunk))
        own = PrioritySampler(12, True, 5)
        own.offer(chunk, scores_of(chunk))
        merged.merge(own)
    for selector in (chunked, merged):
        taken = selector.take()
        assert taken is not None
        assert torch.equal(taken[0].key, truth.key)
        torch.testing.assert_close(taken[1], weight)


def test_merging_an_empty_selector_changes_nothing() -> None:
    examples = examples_of("number", 20, DIM)
    full, empty = PrioritySampler(5, True, 0), PrioritySampler(5, True, 0)
    full.offer(examples, scores_of(examples))
    before = full.take()
    full.merge(empty)
    assert before is not None
    after = full.take()
    assert after is not None
    assert torch.equal(before[0].key, after[0].key)
    assert empty.take() is None
    empty.merge(full)
    merged = empty.take()
    assert merged is not None
    assert torch.equal(before[1], merged[1])


def test_uniform_numbers_are_uniform_and_of_key_and_seed_alone() -> None:
    key = torch.arange(-5000, 5000)
    u = uniform(key, 3)
    assert 0 < float(u.min()) <= float(u.max()) <= 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(u.var()) == pytest.approx(1 / 12, abs=0.005)
    assert torch.equal(u[100:200], uniform(key[100:200], 3))
    other = uniform(key, 4)
    assert abs(float(torch.corrcoef(torch.stack([u, other]))[0, 1])) < 0.05


def chosen_by(policy: MemoryPolicy, kind: str, examples: Examples, size: int, seed: int = 0) -> tuple[Memory, Examples]:
    predictor = Predictor(spec_of(kind, DIM))
    regularizer = regularizer_of({"delta": 1.0}, predictor)
    w = 0.5 * torch.randn(predictor.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    curvature = Full.zeros(predictor)
    curvature.add(predictor, w, examples.x)
    H = fill_gauge(curvature.matrix + torch.diag(regularizer.delta), shift_directions(predictor, regularizer.delta))
    selection = MemorySelection(policy, size, predictor, w, H, seed)
    for chunk in examples.chunks(17):
        selection.offer(chunk)
    memory, kept = selection.take()
    assert torch.equal(memory.key, kept.key)
    torch.testing.assert_close(memory.soft, predictor.family.mean(predictor.outputs(w, kept.x)))
    return memory, kept


@pytest.mark.parametrize("select", list(Select))
@pytest.mark.parametrize("kind", FAMILIES)
def test_size_is_respected_and_full_memory_has_weights_one(kind: str, select: Select) -> None:
    examples = examples_of(kind, 120, DIM)
    memory, kept = chosen_by(MemoryPolicy(select=select), kind, examples, 15)
    assert len(memory) == len(kept) == 15
    assert len(memory.key.unique()) == 15
    for size in (120, 500):
        memory, _ = chosen_by(MemoryPolicy(select=select), kind, examples, size)
        assert torch.equal(memory.key.sort().values, examples.key)
        assert bool((memory.weight == 1).all())


@pytest.mark.parametrize("kind", FAMILIES)
def test_papers_rule_is_the_largest_curvature(kind: str) -> None:
    examples = examples_of(kind, 120, DIM)
    memory, _ = chosen_by(MemoryPolicy(select=Select.CURVATURE), kind, examples, 15)
    predictor = Predictor(spec_of(kind, DIM))
    w = 0.5 * torch.randn(predictor.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    trace = torch.einsum("nkk->n", predictor.family.hessian(predictor.outputs(w, examples.x)))
    threshold = trace.sort(descending=True).values[14]
    assert bool((trace[memory.key] >= threshold - 1e-15).all())
    assert bool((memory.weight == 1).all())


@pytest.mark.parametrize("kind", FAMILIES)
def test_most_of_a_memory_by_leverage_are_the_rows_that_can_move_the_curvature_most(kind: str) -> None:
    examples = examples_of(kind, 60, DIM)
    predictor = Predictor(spec_of(kind, DIM, regularizer=l2(0.4, True)))
    delta = regularizer_of(l2(0.4, True), predictor).delta
    w = torch.zeros(predictor.size, dtype=torch.float64)
    G = Full.zeros(predictor)
    G.add(predictor, w, examples.x)
    H = G.matrix + torch.diag(delta)
    selection = MemorySelection(MemoryPolicy(select=Select.LEVERAGE), 9, predictor, w, H, 0)
    for chunk in examples.chunks(17):
        selection.offer(chunk)
    phi, K = predictor.features(examples.x), predictor.family.outputs
    changes = [torch.eye(K)[k] - torch.eye(K)[j] for k in range(K) for j in range(k)] or [torch.ones(1)]
    directions = torch.stack([torch.einsum("k,nd->nkd", c.double(), phi).flatten(1) for c in changes])
    truth = torch.einsum("cnp,pq,cnq->cn", directions, torch.linalg.inv(H), directions).amax(0)
    ranked = truth.sort(descending=True).values
    memory, _ = selection.take()
    alone = memory.key[memory.weight == 1]
    assert set(alone.tolist()) == set(truth.topk(7).indices.tolist())
    assert selection.reach == pytest.approx(float(ranked[7]))
    assert selection.peak == pytest.approx(float(ranked[0]))
    assert float(memory.weight.sum()) == pytest.approx(60)


@pytest.mark.parametrize("select", [Select.LEVERAGE, Select.RANDOM, Select.COVERAGE])
def test_weighted_sums_over_memory_estimate_sums_over_all(select: Select) -> None:
    examples = examples_of("binary", 300, DIM)
    counts = torch.tensor(
        [float(chosen_by(MemoryPolicy(select=select), "binary", examples, 30, s)[0].weight.sum()) for s in range(60)]
    )
    error = float(counts.std()) / 60**0.5
    assert abs(float(counts.mean()) - 300) <= 4 * error + 1e-6


def test_coverage_weights_are_cluster_sizes() -> None:
    examples = examples_of("classes", 300, DIM)
    memory, kept = chosen_by(MemoryPolicy(select=Select.COVERAGE), "classes", examples, 20)
    assert float(memory.weight.sum()) == 300
    nearest = torch.cdist(examples.x, kept.x).min(1).values.mean()
    others = [examples.take(torch.randperm(300, generator=torch.Generator().manual_seed(s))[:20]) for s in range(20)]
    at_random = min(float(torch.cdist(examples.x, other.x).min(1).values.mean()) for other in others)
    assert float(nearest) < at_random


@pytest.mark.parametrize("seed", range(5))
def test_a_random_memory_represents_all_examples(seed: int) -> None:
    """Each for N / M, as `Select.RANDOM` says: M of them make N, not N give or take a fifth."""
    examples = examples_of("binary", 300, DIM)
    memory, _ = chosen_by(MemoryPolicy(select=Select.RANDOM), "binary", examples, 30, seed)
    torch.testing.assert_close(memory.weight, torch.full((30,), 10.0, dtype=torch.float64))


@pytest.mark.parametrize("select", [Select.CURVATURE, Select.RANDOM, Select.LEVERAGE, Select.COVERAGE])
def test_balance_takes_as_many_of_each_class(select: Select) -> None:
    examples = examples_of("classes", 400, DIM)
    order = classes_of(examples.y).argsort()
    few = torch.cat([order[:300], order[-12:]])  # the last class is rare
    memory, kept = chosen_by(MemoryPolicy(select=select, balance=True), "classes", examples.take(few.sort().values), 24)
    assert torch.bincount(classes_of(kept.y), minlength=3).tolist() == [8, 8, 8]
    assert len(memory) == 24


@pytest.mark.parametrize(
    ("policy", "count", "size"),
    [
        (MemoryPolicy(), 10_000, 200),
        (MemoryPolicy(), 10**9, 5_000),
        (MemoryPolicy(), 3, 1),
        (MemoryPolicy(), 0, 1),
        (MemoryPolicy(fraction=0.0), 100, 1),
        (MemoryPolicy(fraction=1.0), 100, 100),
        (MemoryPolicy(fraction=1.0, cap=7), 100, 7),
        (MemoryPolicy(fraction=0.5), 7, 4),
        (EVERYTHING, 10**7, 10**7),
    ],
)
def test_size_follows_fraction_and_cap(policy: MemoryPolicy, count: int, size: int) -> None:
    assert policy.size(count) == size


@pytest.mark.parametrize("select", [Select.AUTO, Select.LEVERAGE])
def test_memory_of_a_network_is_chosen_at_random(select: Select) -> None:
    """Nobody knows the leverage of its examples."""
    predictor = Predictor(spec_of("binary", DIM, {"kind": "mlp", "hidden": [3]}))
    w = predictor.initial_weights()
    selection = MemorySelection(MemoryPolicy(select=select), 5, predictor, w, None, 0)
    assert selection.select is Select.RANDOM
    with pytest.raises(ValueError, match="no examples"):
        selection.take()


@pytest.mark.parametrize("select", list(Select))
def test_training_remembers_the_same_whatever_its_chunks(select: Select) -> None:
    examples = examples_of("binary", 200, DIM)
    policy = MemoryPolicy(fraction=0.1, select=select)
    first, second = (train(spec_of("binary", DIM), examples.chunks(n), policy=policy) for n in (200, 23))
    assert torch.equal(first.state.memory.key, second.state.memory.key)
    torch.testing.assert_close(first.state.memory.weight, second.state.memory.weight)
    by_key = rows(examples, 0, 200).x[first.state.memory.key]
    assert torch.equal(first.memory.x, by_key)


def test_each_seed_draws_another_memory() -> None:
    examples = examples_of("binary", 200, DIM)
    policy = MemoryPolicy(fraction=0.1, select=Select.RANDOM)
    keys = [
        train(spec_of("binary", DIM), [examples], policy=policy, training=Training(seed=s)).state.memory.key
        for s in range(2)
    ]
    assert not torch.equal(*keys)


def test_regression_targets_are_never_balanced() -> None:
    examples = examples_of("number", 60, DIM)
    plain, _ = chosen_by(MemoryPolicy(select=Select.RANDOM), "number", examples, 10)
    balanced, _ = chosen_by(MemoryPolicy(select=Select.RANDOM, balance=True), "number", examples, 10)
    assert torch.equal(plain.key, balanced.key)
    assert len(replace(balanced, generation=3)) == 10
