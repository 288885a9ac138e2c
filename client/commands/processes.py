"""Commands that start another part of Amend as a process: the service, migrations, benchmarks.

Benchmarks define their options where they are: the command hands over what it was given and ends with
the exit code it gets back.
"""

import signal
import subprocess
import sys
from types import FrameType

import typer

# `--help` is not ours to answer either: only the benchmark knows its options.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

bench = typer.Typer(
    help="Measure Amend against full retraining. Each benchmark lists its options with --help.",
    no_args_is_help=True,
)


@bench.command(context_settings=PASS_THROUGH)
def paper(context: typer.Context) -> None:
    """Repeat the tasks of the K-priors paper: accuracy, distance to a retrain, and cost."""
    raise typer.Exit(run_module("bench", "paper", *context.args))


@bench.command(context_settings=PASS_THROUGH)
def scale(context: typer.Context) -> None:
    """Time one adaptation as the number of past examples grows."""
    raise typer.Exit(run_module("bench", "scale", *context.args))


@bench.command(context_settings=PASS_THROUGH)
def digits(context: typer.Context) -> None:
    """A tour in a few seconds: every task on scikit-learn's digits, adapted against retrained."""
    raise typer.Exit(run_module("bench", "digits", *context.args))


@bench.command(context_settings=PASS_THROUGH)
def ingest(context: typer.Context) -> None:
    """Count the examples a second that the service takes, by format of the batch."""
    raise typer.Exit(run_module("bench", "ingest", *context.args))


def service() -> None:
    """Serve the REST API until Ctrl-C. Settings come from the environment: AMEND_PORT, AMEND_DATABASE_URL ...

    Example: AMEND_PORT=8080 amend service
    """
    raise typer.Exit(run_module("service"))


def migrate() -> None:
    """Bring the database to this version of Amend; a new one gets its first key, in $AMEND_HOME/admin.key.

    Example: amend migrate
    """
    raise typer.Exit(run_module("migrations"))


def run_module(module: str, *arguments: str) -> int:
    """Run ``python -m module arguments...`` and return its exit code."""
    # -P: without it, a folder named like the module in the user's directory would be run instead.
    with subprocess.Popen([sys.executable, "-P", "-m", module, *arguments]) as process:

        def pass_on(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        # Who stops us by SIGTERM means the child, which would else go on without us.
        before = signal.signal(signal.SIGTERM, pass_on)
        try:
            code = wait(process)
        finally:
            signal.signal(signal.SIGTERM, before)
    # A negative code is the signal that ended the child; shells report it as 128 + signal.
    return code if code >= 0 else 128 - code


def wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal sends Ctrl-C to both processes; the child decides how to end.
            continue
