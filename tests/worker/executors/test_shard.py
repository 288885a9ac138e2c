"""Shards that another process adds up: what it is told is enough, and it declines what it would do otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from core.kprior import train
from core.kprior.data.codec import unpack
from core.kprior.passes.accumulator import Combined, add_shards
from core.ledger import passes
from core.ledger.digest import Digest
from core.ledger.holdout_sample import sample_holdout
from core.models import catalog
from core.quality.evaluation import Evaluation
from tests.worker.deployment import Deployment, problem
from worker.executors.pass_shard import ProcessContext, add_shard, describe_pass, read_request, sign


@pytest.fixture(autouse=True)
def elsewhere(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with the settings of a worker."""
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    ProcessContext.of_this_process.cache_clear()
    yield
    ProcessContext.of_this_process.cache_clear()
    read_request.cache_clear()


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_sums_of_shards_have_the_bits_of_one_process(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    name, (x, y) = deployment.new_model(), problem(60)
    deployment.add_examples(name, x, y, split=split)
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    monkeypatch.setattr("core.ledger.layouts.CHUNK_BYTES", 1000)
    where = deployment.database, model.id, model.spec, model.head
    data = passes.read_in_force(*where) if split == "train" else sample_holdout(*where, 1000)
    assert len(data.shards()) > 2

    every = passes.read_in_force(*where, holdout=split == "holdout")
    total = Combined(Evaluation(train(model.spec, every).state), Digest(deployment.settings.secret))
    alone = add_shards(data.shards(), total.empty()).sums()
    request = describe_pass(data, total, sign(deployment.settings, deployment.database, "cpu"))
    for shard in reversed(data.shards()):
        assert add_shard(request, shard.span.start, shard.span.stop) is not None
    merged = total.empty()
    for shard in data.shards():
        merged.merge(unpack(add_shard(request, shard.span.start, shard.span.stop) or b"")[1])
    assert alone.keys() == merged.sums().keys()
    assert all(torch.equal(alone[name], sums) for name, sums in merged.sums().items())


@pytest.mark.parametrize("what", range(6))
def test_a_process_of_another_kind_declines(deployment: Deployment, what: int) -> None:
    signature = sign(deployment.settings, deployment.database, "cpu")
    if what != 2:  # the device is what it is asked for
        signature[what] = "another"
    name = deployment.new_model()
    deployment.add_examples(name, *problem(4), split="train")
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    data = passes.read_in_force(deployment.database, model.id, model.spec, model.head)
    found = add_shard(describe_pass(data, Digest(deployment.settings.secret), signature), 0, 4)
    assert (found is None) == (what != 2)
