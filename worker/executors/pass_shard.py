"""One shard of a pass, summed by another process: its request and its response.

It does not depend on Ray (`ray_executor.py` transports the bytes). Between shards it keeps a connection and the
request, but no rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, TypedDict, cast

import torch

from core.database import Database
from core.kprior.data.codec import join_groups, pack, take_group, unpack
from core.kprior.model.spec import Spec
from core.kprior.passes.accumulator import Accumulator, accumulator_of, add_chunks, config_of
from core.ledger.digest import Digest
from core.ledger.holdout_sample import SampledRows
from core.ledger.passes import Pass, read_in_force
from core.settings import Settings, from_environment
from core.tables.bookkeeping import Metadata
from core.versions import store_identity


class PassRequest(TypedDict):
    """The request for all shards of a pass: which rows to read, and what to sum."""

    model: int
    spec: Spec
    at: int
    removals_position: int
    threads: int
    signature: list[str]
    asked: dict[str, Any]
    """The config of the accumulator."""


def sign(settings: Settings, database: Database, device: str) -> list[str]:
    """Identifies what a sum depends on: another processor or version would change bits, another secret the digest, and
    another database the rows."""
    key = hashlib.sha256(settings.secret).digest()
    secret = hashlib.blake2b(b"the same secret", key=key, digest_size=16).hexdigest()
    with database.read() as session:
        store = session.get(Metadata, store_identity.NAME)
    belongs = "" if store is None else store.value.decode()
    return [version("amend"), torch.__version__, device, torch.backends.cpu.get_cpu_capability(), secret, belongs]


@dataclass(frozen=True)
class ProcessContext:
    """Settings, database and signature of a process, read from its own environment."""

    settings: Settings
    database: Database
    device: torch.device
    signature: list[str]

    @classmethod
    @lru_cache(maxsize=1)
    def of_this_process(cls, device: str) -> ProcessContext:
        settings = from_environment()
        database = Database(settings)
        return cls(settings, database, torch.device(device), sign(settings, database, device))


def describe_pass(data: Pass | SampledRows, total: Accumulator, signature: list[str]) -> bytes:
    """The request for a pass, as bytes."""
    config, tensors = config_of(total)
    groups = {"asked": tensors}
    if isinstance(data, SampledRows):
        groups["sample"] = {"positions": torch.from_numpy(data.positions.copy())}
    request: PassRequest = {
        "model": data.model_id,
        "spec": data.spec,
        "at": data.at,
        "removals_position": data.removals_position,
        "threads": torch.get_num_threads(),
        "signature": signature,
        "asked": config,
    }
    return pack({**request}, join_groups(groups))


def add_shard(request: bytes, start: int, stop: int) -> bytes | None:
    """The sums over one shard, a range of the data's span; None if the signature differs from the requester's."""
    found = read_request(request)
    if found is None:
        return None
    data, total = found
    return pack({}, add_chunks(data.narrow(range(start, stop)), total.empty()).sums())


@lru_cache(maxsize=1)  # shards of one pass arrive one after the other
def read_request(request: bytes) -> tuple[Pass | SampledRows, Accumulator] | None:
    """The rows to read and the accumulator; None if the signature differs from the requester's."""
    header, tensors = unpack(request)
    asked = cast(PassRequest, header)
    context = ProcessContext.of_this_process(asked["signature"][2])
    if context.signature != asked["signature"]:
        return None
    torch.set_num_threads(asked["threads"])  # another number would sum in another order
    where = context.database, asked["model"], asked["spec"], asked["at"]
    sample = take_group(tensors, "sample")
    removals = asked["removals_position"]
    data = (
        SampledRows(*where, sample["positions"].numpy(), removals)
        if sample
        else read_in_force(*where, removals_position=removals)
    )
    total = accumulator_of(
        asked["asked"], take_group(tensors, "asked"), context.device, Digest(context.settings.secret)
    )
    return data, total
