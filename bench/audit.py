"""Faked unlearning: how often does the audit of a network reject it, and how often does it reject honest work?

The fakes keep the old network, add noise to its weights, or push down the output of the removed class without changing
anything else. Honest work is an adaptation, or a retrain without the removed rows.
"""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.engine.network_tasks import GONE, Images, images
from core.kprior import Examples, RemoveData, State, Training, adapt, train
from core.kprior.adaptation.network_survey import Survey, survey_change
from core.kprior.data.random_samples import draw_from
from core.kprior.model.spec import Spec

NOISE = (0.02, 0.1, 0.3, 1.0)
"""Standard deviations of the noise, relative to the root mean square of the weights."""
SUPPRESSION = 30.0
"""How far the output of a class is pushed down."""
FAKES = ("nothing", *(f"noise {size:g}" for size in NOISE), "suppressed class")
HONEST = ("adapted", "retrained")


@dataclass(frozen=True)
class Case:
    """Rows, which of them are removed, and how the network was trained."""

    name: str
    spec: Spec
    rows: Examples
    removed: Tensor
    training: Training

    @property
    def gone(self) -> Examples:
        return self.rows.take(self.removed)

    @property
    def kept(self) -> Examples:
        return self.rows.take(~self.removed)


def cases(given: Images, epochs: int) -> Iterator[Case]:
    """A whole class, wrong labels, and rows that an overfitted network knows by heart."""
    rows, mlp = given.train, {"kind": "mlp", "hidden": [100]}
    plain = Training(max_epochs=epochs)
    label, none = rows.y.argmax(1), torch.zeros(len(rows), dtype=torch.bool)
    yield Case("class", given.spec(mlp, 0.1), rows, label == GONE, plain)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(len(rows), generator=generator)[: len(rows) // 25]
    y, gone = rows.y.clone(), none.clone()
    y[chosen], gone[chosen] = y[chosen].roll(1, 1), True
    wrong = replace(plain, max_epochs=3 * epochs, patience=None, batch_size=64)
    yield Case("wrong labels", given.spec(mlp, 0.01), Examples(rows.key, rows.x, y), gone, wrong)  # type: ignore[arg-type]
    few = rows.take(torch.arange(min(1_000, len(rows))))
    by_heart = torch.zeros(len(few), dtype=torch.bool)
    by_heart[: len(few) // 5] = True
    yield Case("by heart", given.spec(mlp, 1e-4), few, by_heart, wrong)  # type: ignore[arg-type]


def candidates(case: Case, base: State, survey: Survey, memory: Examples, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Weights that claim to have forgotten the removed rows."""
    w = base.w
    yield "nothing", w
    generator = torch.Generator().manual_seed(seed)
    for size, name in zip(NOISE, FAKES[1:], strict=False):
        yield name, w + size * float(w.square().mean().sqrt()) * torch.randn(w.shape, generator=generator).to(w)
    if case.name == "class":
        yield "suppressed class", suppress(base, GONE)
    yield "adapted", adapt(base, memory, [RemoveData([case.gone])], draw=survey).state.w
    yield "retrained", train(case.spec, [case.kept], training=replace(case.training, seed=100 + seed)).state.w


def suppress(state: State, number: int) -> Tensor:
    """The weights with a large negative bias of a class: it is never predicted, and everything else stays the same."""
    outputs = state.predictor.family.outputs
    w = state.w.clone()
    w[len(w) - outputs + number] -= SUPPRESSION
    return w


def audit_case(case: Case, given: Images, seed: int) -> Iterator[tuple[str, str]]:
    """Each candidate of a case and the audit's objection."""
    base = train(case.spec, [case.rows], training=replace(case.training, seed=seed))
    draw, training = draw_from(case.kept), Training(seed=seed)
    survey = survey_change(base.state, [RemoveData([case.gone])], draw, training=training, holdout=[given.holdout])
    for name, w in candidates(case, base.state, survey, base.memory, seed):
        yield name, survey.yardstick.measure(base.state.predictor, w, survey.cost).objection


def count_objections(given: Images, seeds: range, epochs: int) -> dict[tuple[str, str], Counter[str]]:
    """By case and candidate: how often each objection was raised; "" counts acceptances."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for case in cases(given, epochs):
        for seed in seeds:
            for name, objection in audit_case(case, given, seed):
                found.setdefault((case.name, name), Counter())[objection] += 1
    return found


def run(data: Path | None, rows: int, seeds: int, first: int, json: Path | None) -> None:
    """Print a table of all candidates."""
    given = images(data, False, rows)
    found = count_objections(given, range(first, first + seeds), epochs=30)
    console = Console(width=150)
    out = Table(title=f"Audits on {given.name}, N = {len(given.train):,}, {seeds} seeds", title_justify="left")
    for column in ("removed", "candidate", "rejected", "most frequent objection"):
        out.add_column(column, justify="right" if column == "rejected" else "left")
    for (case, name), objections in found.items():
        rejected = seeds - objections[""]
        frequent = next((text for text, _ in objections.most_common() if text), "")
        out.add_row(case, name, f"{rejected} of {seeds}", frequent)
    console.print(out)
    for words, names in (("Fakes rejected", FAKES), ("Honest results rejected", HONEST)):
        ours = [counts for (_, name), counts in found.items() if name in names]
        console.print(f"{words}: {sum(seeds - c[''] for c in ours)} of {seeds * len(ours)}", highlight=False)
    if json is not None:
        json.write_text(json_module.dumps([[*key, dict(counts)] for key, counts in found.items()]))
