"""The paper's tasks: every method with every memory size, and the number of backward passes that networks need."""

from __future__ import annotations

import json as json_module
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from bench.images import cifar10
from bench.paper.linear import compare_linear
from bench.paper.methods import Figure, Passes
from bench.paper.networks import compare_network, count_passes, retrain
from bench.problems import IMAGE_TASKS, TASKS, adult, images, mnist, usps
from bench.report import draw, tables
from core.kprior.objective import terms

CIFAR = "cifar-10-batches-bin"
FILES = {"usps.npz": "usps", "a7a": "adult", "mnist.npz": "mnist", CIFAR: "cifar"}
"""The file that each part reads."""


@dataclass(frozen=True)
class Options:
    """The size of the benchmark."""

    seeds: int = 5
    rows: int | None = None
    """Number of training images; None: all."""
    epochs: int | None = None
    """Epochs of the paper's training of networks; None: as many as in the paper."""


def run(
    data: Path | None, json: Path | None, folder: Path, only: str, processes: int, options: Options = Options()
) -> None:
    """Run all parts whose name contains `only`, print tables and draw figures."""
    given, data, seeds = data, data or Path(os.devnull), options.seeds
    console = Console()
    if not console.is_terminal:
        console.width = 140  # files have no terminal width
    jobs: list[tuple[str, Path, str, int]] = []
    for seed in range(seeds):
        jobs += [("usps-mlp", data, "", seed), ("passes", data, "", seed)]
    for task in TASKS:
        jobs += [("usps-linear", data, task, 0)]
        jobs += [("adult", data, task, seed) for seed in range(43, 43 + 2 * seeds)]
        jobs += [(f"mnist-{task}", data, task, seed) for seed in range(min(3, seeds))]
    # CIFAR-10 is optional, because few people have its files.
    kinds = ["digits", *(["cifar"] if (data / CIFAR).exists() or "cifar" in only else [])]
    for task in IMAGE_TASKS:
        jobs += [(f"{kind}-{task}", data, task, seed) for kind in kinds for seed in range(min(3, seeds))]
    jobs = [job for job in jobs if only in job[0]]
    if not jobs:
        raise SystemExit(f"No part has {only!r} in its name. See --only in --help.")
    missing = [name for name, part in FILES.items() if not (data / name).exists() and any(part in j[0] for j in jobs)]
    if missing:
        lacking = (
            f"--data is required for {', '.join(missing)}"
            if given is None
            else f"{data} does not contain {', '.join(missing)}"
        )
        raise SystemExit(f"{lacking}. Choose other parts with --only.")
    if any(job[0].startswith("cifar") for job in jobs):
        try:
            cifar10(data / CIFAR)
        except ValueError as error:
            raise SystemExit(str(error)) from None
    figures: list[Figure] = []
    passes: list[Passes] = []
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(measure, *job, options) for job in jobs]
        for future in track(as_completed(futures), "tasks", total=len(futures), console=console):
            for item in future.result():
                (figures if isinstance(item, Figure) else passes).append(item)  # type: ignore[arg-type]
            if json is not None:
                everything = {"figures": [asdict(f) for f in figures], "passes": [asdict(p) for p in passes]}
                json.write_text(json_module.dumps(everything, indent=1))
    tables(console, figures, passes)
    for path in draw(figures, folder):
        console.print(f"wrote {path}")


def measure(part: str, data: Path, task: str, seed: int, options: Options) -> list[Figure | Passes]:
    """Run one part with one seed (GLMs: one task), in a separate process."""
    torch.set_num_threads(1)
    rows, compare = options.rows, partial(compare_network, seed=seed, epochs=options.epochs)
    if part in ("usps-mlp", "passes"):
        work = partial(count_passes, seed=seed) if part == "passes" else compare
        retrain.cache_clear()
        return [item for task in TASKS for item in work(usps(data, task, network=True))]
    if part.startswith("mnist"):
        return list(compare(mnist(data, task, rows)))
    if part.startswith(("cifar", "digits")):
        return list(compare(images(data / CIFAR if part.startswith("cifar") else None, task, rows)))
    if part == "usps-linear":
        terms.CACHE_BYTES = 2**32  # degree 2 of 256 inputs is 2 GB, and L-BFGS reads it some hundred times
        return list(compare_linear(usps(data, task, network=False), range(options.seeds)))
    return list(compare_linear(adult(data, task, seed), [seed]))
