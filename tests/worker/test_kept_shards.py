"""Passes of an erasure keep examples in memory, up to a limit; what they read stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import worker.example_reading
from core.kprior import Examples
from worker.example_reading import KeptShards, Reading

ROWS, SHARDS = 10, 4
SHARD_BYTES = ROWS * (8 + 8 * 3 + 8)
"""Keys, three numbers and a target."""


class CountedShard:
    """Stands in for a pass over the ledger, and counts how often it is read."""

    def __init__(self, span: range, reads: list[range]) -> None:
        self.span, self.reads, self.at = span, reads, ROWS * SHARDS

    def shards(self) -> list[CountedShard]:
        return [CountedShard(range(start, start + ROWS), self.reads) for start in self.span[::ROWS]]

    def __iter__(self) -> Iterator[Examples]:
        self.reads.append(self.span)
        key = torch.tensor(list(self.span))
        yield Examples(key, key[:, None].double().expand(-1, 3).clone(), key[:, None].double())


@pytest.mark.parametrize(("limit", "kept"), [(SHARDS * SHARD_BYTES, 4), (2 * SHARD_BYTES, 2), (SHARD_BYTES - 1, 0)])
def test_examples_that_fit_are_read_once(limit: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.example_reading, "MAX_KEPT_BYTES", limit)
    reads: list[range] = []
    data: Any = CountedShard(range(ROWS * SHARDS), reads)
    attempt: Any = SimpleNamespace(context=SimpleNamespace(executor=None))
    reading = Reading(attempt, data, lambda _share, _phrase: None, "Reading", KeptShards())
    for passes in (1, 2, 3):
        keys = [key for shard in reading.shards() for chunk in shard for key in chunk.key.tolist()]
        assert keys == list(range(ROWS * SHARDS))
        assert len(reads) == SHARDS + (passes - 1) * (SHARDS - kept)
