"""One shard of a pass, added up by another process: what it is told, and what it answers.

Knows nothing of who carries the bytes (`on_ray.py`). It keeps neither rows nor connections when it is done.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import Any, TypedDict, cast

import torch

from core.database import Database
from core.kprior.data.codec import Tensors, pack, unpack
from core.kprior.model.spec import Spec
from core.kprior.passes.accumulator import Accumulator, accumulator_of, add_chunks, config_of
from core.ledger.digest import Digest
from core.ledger.passes import Pass, read_in_force
from core.settings import Settings, from_environment
from core.tables.bookkeeping import Metadata
from core.versions import store_identity


class PassRequest(TypedDict):
    """What is the same for all shards of a pass: which rows to read, and what to add up."""

    model: int
    spec: Spec
    at: int
    threads: int
    signature: list[str]
    asked: dict[str, Any]
    """The config of the accumulator."""


def sign(settings: Settings, database: Database, device: str) -> list[str]:
    """By what sums are added up, and of what: another processor or version would give other bits, another secret
    another digest, and another database other rows."""
    key = hashlib.sha256(settings.secret).digest()
    secret = hashlib.blake2b(b"the same secret", key=key, digest_size=16).hexdigest()
    with database.read() as session:
        store = session.get(Metadata, store_identity.NAME)
    belongs = "" if store is None else store.value.decode()
    return [version("amend"), torch.__version__, device, torch.backends.cpu.get_cpu_capability(), secret, belongs]


def describe_pass(data: Pass, total: Accumulator, signature: list[str]) -> bytes:
    """What those who add up its shards are told."""
    config, tensors = config_of(total)
    request: PassRequest = {
        "model": data.model_id,
        "spec": data.spec,
        "at": data.at,
        "threads": torch.get_num_threads(),
        "signature": signature,
        "asked": config,
    }
    return pack({**request}, tensors)


def add_shard(request: bytes, start: int, stop: int) -> bytes | None:
    """The sums over the rows after `start` until `stop`; None if they would not be those of the asker."""
    settings = from_environment()
    header, tensors = unpack(request)
    asked = cast(PassRequest, header)
    device = asked["signature"][2]
    database = Database(settings)
    try:
        if sign(settings, database, device) != asked["signature"]:
            return None
        return pack({}, sum_rows(settings, database, asked, tensors, range(start, stop)))
    finally:
        database.close()


def sum_rows(settings: Settings, database: Database, asked: PassRequest, tensors: Tensors, span: range) -> Tensors:
    torch.set_num_threads(asked["threads"])  # another number would add up in another order
    device = torch.device(asked["signature"][2])
    total = accumulator_of(asked["asked"], tensors, device, Digest(settings.secret))
    rows = read_in_force(database, asked["model"], asked["spec"], asked["at"]).narrow(span)
    return add_chunks(rows, total).sums()
