"""`amend bench engine`: the cost and quality of adaptations, compared with the alternatives.

Each part is one table with its yardsticks, and ends by saying which targets are met.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.engine.clock import one_thread
from bench.engine.tables import Report

WIDTH = 190
"""Columns of a table that goes to a file."""


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    data: Path | None
    """A folder with mnist.npz and 20newsgroups-train.tab; without it data are generated, and networks learn
    scikit-learn's digits."""
    rows: int
    """Number of rows of the largest dense model."""
    seeds: int
    quick: bool


def parts() -> dict[str, Callable[[Options], Iterator[Report]]]:
    """The parts by name."""
    from bench.engine import anchored, categories, dense, encoders, networks, schema, trees, wide
    from bench.engine.overfitted import run as forget

    def small(options: Options) -> Iterator[Report]:
        yield anchored.run(min(options.rows, 10_000) if options.quick else options.rows, options.quick)

    return {
        "anchored": small,
        "categories": lambda o: iter([categories.run(o.quick)]),
        "dense": lambda o: iter([dense.run(o.data, o.quick)]),
        "schema": lambda o: iter([schema.run(o.quick)]),
        "wide": lambda o: wide.run(o.data, o.quick),
        "wide-independent": lambda o: iter([wide.independent(o.quick)]),
        "kernel": lambda o: iter([wide.kernel(o.quick)]),
        "million": lambda o: iter([wide.million(o.quick)]),
        "trees": lambda o: iter([trees.run(o.rows, o.quick)]),
        "encoders": lambda o: encoders.run(o.data, o.quick),
        "networks-mlp": lambda o: networks.run("mlp", o.data, o.seeds, o.quick),
        "networks-lenet5": lambda o: networks.run("lenet5", o.data, o.seeds, o.quick) if o.data else iter([]),
        "networks-small": lambda o: networks.run("small", None, o.seeds, o.quick),
        "networks-overfitted": lambda o: iter([forget(o.data, o.seeds, o.quick)]),
    }


def run(options: Options, only: str, json: Path | None, figures: Path | None) -> None:
    """Run all parts whose name contains `only`; results are written as soon as a part is done."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    chosen = {name: part for name, part in parts().items() if only in name}
    if not chosen:
        raise SystemExit(f"no part is called like {only!r}; there are {', '.join(parts())}")
    reports: list[Report] = []
    with one_thread():
        for name, part in chosen.items():
            console.print(f"{name} ...")
            for report in part(options):
                report.show(console)
                reports.append(report)
                if json is not None:
                    json.write_text(json_module.dumps([each.figures() for each in reports], indent=1))
                if figures is not None:
                    from bench.engine.figures import draw

                    together = [each for each in reports if each.name == report.name]
                    for path in draw(together, figures):
                        console.print(f"wrote {path}")
