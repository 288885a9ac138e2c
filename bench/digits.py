"""A tour of the four tasks on scikit-learn's digits (odd or even): adapted against retrained, in a few seconds."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

from bench.paper import Reporter
from bench.problems import Problem, examples, spec
from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    MemoryPolicy,
    RemoveData,
    Result,
    Task,
    adapt,
    refine,
    train,
)

LINEAR: dict[str, Any] = {"kind": "linear", "degree": 1}
POLICY = MemoryPolicy(fraction=0.1)


def problems() -> list[tuple[str, Problem]]:
    """What happens to the model, in a few words, and the problem it makes."""
    pixels, digit = (torch.tensor(v) for v in load_digits(return_X_y=True))
    held_out = torch.arange(len(digit)) % 4 == 0
    data, test = (examples(pixels[m] / 16, digit[m] % 2) for m in (~held_out, held_out))
    digit, test_digit = digit[~held_out], digit[held_out]
    plain, nine, eight = spec(64, LINEAR, 10.0), digit == 9, digit == 8
    weaker = spec(64, LINEAR, 1.0)
    removal: list[Task] = [RemoveData([data.take(eight)])]
    change: list[Task] = [ChangeRegularizer(weaker["regularizer"])]
    curved = spec(64, {"kind": "linear", "degree": 2}, 10.0)
    mix: list[Task] = [*removal, *change]
    rest, rest_test = data.take(~eight), test.take(test_digit != 8)
    return [
        (
            "digit 9 arrives",
            Problem("digits", "add", plain, data.take(~nine), [AddData([data.take(nine)])], plain, data, test),
        ),
        ("digit 8 is removed", Problem("digits", "remove", plain, data, removal, plain, rest, rest_test)),
        ("delta 10 becomes 1", Problem("digits", "regularizer", plain, data, change, weaker, data, test)),
        ("degree 2 becomes 1", Problem("digits", "model", curved, data, [ChangeModel(LINEAR)], plain, data, test)),
        ("8 out and delta 1", Problem("digits", "mix", plain, data, mix, weaker, rest, rest_test)),
    ]


def run() -> None:
    """Adapt, certify with one pass, compare with the retrain that is otherwise not run."""
    console = Console()
    table = Table(title="Adapted from the old model and a tenth of its examples, against a full retrain")
    for column in ("what happened", "retrained", "adapted", "differ", "refined", "bound", "gradients"):
        table.add_column(column, justify="left" if column == "what happened" else "right")
    for title, problem in track(problems(), "adapting", console=console, transient=True):
        base = train(problem.spec, [problem.base], policy=POLICY)
        batch = train(problem.new_spec, [problem.retained])
        say = Reporter(problem, batch)
        adapted = adapt(base.state, base.memory, problem.tasks, policy=POLICY)
        measured = refine(adapted.state, adapted.memory, [problem.retained], tolerance=0.0, rounds=3)
        refined = Result(measured.state, adapted.memory, adapted.cost + measured.cost, True)
        figures = say("adapted", 0.1, 0, adapted), say("refined", 0.1, 0, refined)
        table.add_row(
            title,
            f"{say('batch', 1.0, 0, batch).accuracy:.1f} %",
            f"{figures[0].accuracy:.1f} %",
            f"{figures[0].disagreement:.2f} %",
            f"{figures[1].disagreement:.2f} %",
            f"{measured.certificate.relative:.1e}",
            f"{adapted.cost.backward_passes / batch.cost.backward_passes:.0%}",
        )
    console.print(table)
    console.print(
        "accuracy on held-out digits; differ: predictions that are not the retrain's; refined: the same after three\n"
        "passes over the retained rows; bound: what those guarantee for |w - w_retrain| / |w|; gradients: of single\n"
        "examples, adapting in % of retraining",
        style="dim",
        soft_wrap=True,
    )
