"""`amend bench ...`: the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PARTS = (
    *("anchored", "dense", "schema", "wide", "kernel", "million"),
    *("networks-mlp", "networks-lenet5", "networks-overfitted"),
)
"""Of the engine's benchmark: importing it takes seconds, which its help need not."""

app = typer.Typer(name="amend bench", no_args_is_help=True, add_completion=False, help=__doc__)


@app.command()
def engine(
    data: Annotated[Path | None, typer.Option(help="folder with mnist.npz (x, y, tx, ty); else generated data")] = None,
    only: Annotated[
        str,
        typer.Option(help=f"part of a name: {', '.join(PARTS)}"),
    ] = "",
    rows: Annotated[int, typer.Option(help="rows of the largest anchored model; 10^7 need 4 GB")] = 1_000_000,
    seeds: Annotated[int, typer.Option(help="random seeds of the networks")] = 3,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
    figures: Annotated[Path | None, typer.Option(help="folder for the PNGs")] = None,
    quick: Annotated[bool, typer.Option(help="small sizes: does it work; says nothing of the targets")] = False,
) -> None:
    """Adaptations beside all that could be done instead: nothing, refits from the old weights, retrains."""
    from bench.engine import Options, run

    run(Options(data, rows, seeds, quick), only, json, figures)


@app.command()
def paper(
    data: Annotated[
        Path | None,
        typer.Option(
            help="folder with usps.npz (train_x, train_y, test_x, test_y), a7a, a7a.t, mnist.npz (x, y, tx, ty), "
            "cifar-10-batches-bin; --only digits needs none"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
    figures: Annotated[Path, typer.Option(help="folder for the PNGs")] = Path("results"),
    seeds: Annotated[int, typer.Option(help="random seeds (Adult: twice as many; MNIST: 3 at most)")] = 5,
    only: Annotated[
        str,
        typer.Option(
            help="part of a name: adult, usps-linear, usps-mlp, passes, mnist-add, cifar-model, digits-model ..."
        ),
    ] = "",
    processes: Annotated[int, typer.Option(help="run this many at once, one thread each")] = 2,
    rows: Annotated[int | None, typer.Option(help="training images, the first so many [all]")] = None,
) -> None:
    """The paper's tasks at memory shares from 100 % to 2 %: ours, the paper's K-prior, its limit and rivals, refits."""
    from bench.paper import run

    run(data, json, figures, seeds, only, processes, rows)


@app.command()
def scale(
    largest: Annotated[int, typer.Option(help="rows of the largest past")] = 10_000_000,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
) -> None:
    """Adapting a GLM (P = 100) to 1 000 changes with 10^4 to 10^7 past rows: the past should cost nothing."""
    from bench.scale import run

    run(largest, json)


@app.command()
def ingest(
    only: Annotated[str, typer.Option(help="writing, reading, predictions, uncertainty, postgresql or sqlite")] = "",
    rows: Annotated[int | None, typer.Option(help="examples in the ledger that is read [default: 1000000]")] = None,
    quick: Annotated[bool, typer.Option(help="a small run: does it work, and roughly how fast")] = False,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
) -> None:
    """The service against the bare database and `mlflow models serve`: examples in, a pass out, predictions."""
    from bench.ingest import run

    run(only, rows, quick, json)


@app.command()
def turnaround(
    rows: Annotated[
        list[int] | None, typer.Option(help="examples of a model; may be repeated [100000, 1000000]")
    ] = None,
    removals: Annotated[int, typer.Option(help="how many to measure, one after the other")] = 20,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
) -> None:
    """From a removal's answer to the champion without it, by kind of certificate, beside a retrain; and progress."""
    from bench.turnaround import run

    run(rows or [100_000, 1_000_000], removals, json)


@app.command()
def sharing(
    rows: Annotated[list[int] | None, typer.Option(help="examples; may be repeated [1000000, 10000000]")] = None,
    tasks: Annotated[int, typer.Option(help="tasks at once at the most, one processor each")] = 2,
    repeats: Annotated[int, typer.Option(help="passes of each kind to measure")] = 5,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
) -> None:
    """One pass over all examples, in one process and as tasks of a local Ray cluster; needs the extra `ray`."""
    from bench.sharing import run

    run(rows or [1_000_000, 10_000_000], tasks, repeats, json)


@app.command()
def erasure(
    rows: Annotated[int, typer.Option(help="examples of the model")] = 100_000,
    erasures: Annotated[int, typer.Option(help="how many to measure, one after the other")] = 10,
    json: Annotated[Path | None, typer.Option(help="write every figure here, for machines")] = None,
) -> None:
    """From an erasure's request to its receipt: one at a time, and a hundred at once."""
    from bench.erasure import run

    run(rows, erasures, json)


if __name__ == "__main__":
    app(prog_name="amend bench")
