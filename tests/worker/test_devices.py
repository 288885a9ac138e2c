"""Which GPU a process of a worker uses, and how its threads wait. Machines that run the tests have no GPU: their number
alone is made up."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.settings import Settings
from worker.context import Context


def device(folder: Path, index: int, **settings: str | int) -> str:
    """Of the process with this number."""
    multiprocessing.current_process().index = index  # type: ignore[attr-defined]
    try:
        return str(Context(Settings(home=folder, **settings), None).device)  # type: ignore[arg-type]
    finally:
        del multiprocessing.current_process().index  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("gpus", "settings", "each"),
    [
        (4, {"worker_processes": 4}, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (4, {"worker_processes": 2}, ["cuda:0", "cuda:1"]),
        (2, {"worker_processes": 4}, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (0, {"worker_processes": 2}, ["cpu", "cpu"]),
        (4, {"worker_processes": 1, "device": "cpu"}, ["cpu"]),
    ],
)
def test_each_process_has_a_gpu_as_far_as_they_go_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, settings: dict[str, str | int], each: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert [device(tmp_path, i, **settings) for i in range(len(each))] == each


@pytest.mark.parametrize("given", [None, "7"])
def test_threads_of_a_worker_that_wait_for_others_sleep_soon(given: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if given is None else {"GOMP_SPINCOUNT": given}
    code = "import os, worker; print(os.environ['GOMP_SPINCOUNT'])"
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == (given or "1000")
