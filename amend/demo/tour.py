"""The first half of the tour: what happens to two models of digits, step by step, over REST."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from amend.client import AsyncClient
from amend.demo.digits import Columns, Digits
from amend.demo.screen import Bar, Screen, percent, seconds
from amend.demo.steps import MANUAL_POLICY, Steps
from amend.responses import Comparison, Job, Version

SCHEDULE_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.2
PERSON = "writer-17"
POLICY = {**MANUAL_POLICY, "memory": {"fraction": 0.1}}
MAX_EPOCHS = 1000


@dataclass
class DemoModel:
    """A model of the tour, and what became of it."""

    name: str
    images: Callable[..., Columns]
    spec: dict[str, Any]
    deltas: tuple[float, float]
    """Of the regularizer, before and after."""
    steps: list[tuple[str, int]] = field(default_factory=list)
    """What happened, and the position of the ledger after it."""
    comparisons: dict[int, tuple[Version, Comparison]] = field(default_factory=dict)
    """By position, with the adapted version."""
    first: float = 0.0
    """Accuracy after the first training."""

    def lines(self) -> dict[str, dict[int, float]]:
        """Accuracy by position of the adapted and the retrained model, as the tour saw it.

        MLflow has these figures rounded, and an erasure takes those of versions that knew the person.
        """
        pairs = {at: found.accuracy for at, (_, found) in self.comparisons.items() if found.accuracy is not None}
        adapted = {at: pair.adapted for at, pair in pairs.items()}
        return {
            "adapted": {self.steps[0][1]: self.first, **adapted},
            "retrained": {at: pair.retrained for at, pair in pairs.items()},
        }


class NotScheduled(Exception):
    """The scheduler has not done what the policy asks for."""


class Tour(Steps):
    """Has both models live through all steps, side by side."""

    def __init__(self, client: AsyncClient, screen: Screen) -> None:
        super().__init__(client, screen)
        digits = Digits()
        self.models = [
            DemoModel(
                "digits-linear",
                digits.frequencies,
                {"architecture": {"kind": "linear", "degree": 2}, "policy": POLICY},
                (10.0, 1.0),
            ),
            DemoModel(
                "digits-mlp",
                digits.pixels,
                {
                    "architecture": {"kind": "mlp", "hidden": [100]},
                    "training": {"max_epochs": MAX_EPOCHS, "patience": 5},
                    # networks that were trained from different starts differ on about 1 % of the images
                    "policy": {**POLICY, "tolerance": {"disagreement": 0.03}},
                },
                (0.5, 0.2),
            ),
        ]

    async def run(self) -> None:
        """All steps; StepFailed if one fails."""
        await self.step("train on nine digits", self.train)
        await self.step("the tenth digit arrives", self.add_nine)
        await self.step("a digit is removed", self.remove_eight)
        await self.step("another regularizer", self.change_delta)
        await self.step("degree 2 becomes 1: a simpler model is less accurate, adapted or retrained", self.simplify)
        await self.erase("a person is erased, from all models at once")
        await self.step("a scheduled retrain, to compare with what the erasure has left", self.retrain_on_schedule)

    async def step(self, title: str, act: Callable[[DemoModel, Bar], Awaitable[str]]) -> None:
        """One step of both models at the same time; then a line for each that says what it shows."""
        names = [model.name for model in self.models]
        with self.report_step(title), self.screen.bars(names) as bars:
            said = await asyncio.gather(*(act(model, bar) for model, bar in zip(self.models, bars, strict=True)))
        self.screen.facts(dict(zip(names, said, strict=True)))

    async def train(self, model: DemoModel, bar: Bar) -> str:
        examples = model.images(*range(9))
        regularizer = {"kind": "l2", "delta": model.deltas[0]}
        source = {"kind": "vector", "dim": examples["x"].shape[1]}
        await self.client.create_model(model.name, source, {"kind": "binary"}, regularizer=regularizer, **model.spec)
        added = await self.client.add_examples(model.name, examples)
        job = await self.wait(await self.client.adapt(model.name), bar)
        assert job.version is not None
        version = await self.client.version(model.name, job.version)
        model.steps.append(("nine digits", version.position))
        model.first = version.metrics["accuracy"] or 0.0
        right = f"{percent(version.metrics['accuracy'])} of the held-out ones are told odd or even"
        return f"{added.accepted} examples of 0 to 8; {right}; {seconds(version.cost.seconds)}"

    async def add_nine(self, model: DemoModel, bar: Bar) -> str:
        added = await self.client.add_examples(model.name, model.images(9))
        job = await self.client.adapt(model.name)
        return f"{added.accepted} examples more; {await self.compare_with_retrain(model, '9 arrives', job, bar)}"

    async def remove_eight(self, model: DemoModel, bar: Bar) -> str:
        removed = await self.client.remove_examples(model.name, model.images(8)["id"].tolist())
        found = await self.compare_with_retrain(model, "8 is removed", removed.job, bar)
        return f"{removed.removed} examples less; {found}"

    async def change_delta(self, model: DemoModel, bar: Bar) -> str:
        old, new = model.deltas
        changed = await self.client.change_model(model.name, regularizer={"kind": "l2", "delta": new})
        what = f"delta {old:g} → {new:g}"
        return f"{what}; {await self.compare_with_retrain(model, what, changed.job, bar)}"

    async def simplify(self, model: DemoModel, bar: Bar) -> str:
        if model.spec["architecture"]["kind"] != "linear":
            bar(1.0, "")
            return "has no degree, and stays as it is"
        changed = await self.client.change_model(model.name, architecture={"kind": "linear", "degree": 1})
        what = "degree 2 → 1"
        return f"{what}; {await self.compare_with_retrain(model, what, changed.job, bar)}"

    async def erase(self, title: str) -> None:
        with self.report_step(title), self.screen.bars([PERSON]) as [bar]:
            done = await self.erase_person(PERSON, bar)
            receipt = await self.client.receipt(done)
            chain = await self.client.verify_receipts()
            for model in self.models:
                model.steps.append(("a person is erased", (await self.client.model(model.name)).head))
        said = {
            part["model"]: f"{part['examples']} examples of {PERSON}; {part['words']}" for part in receipt["models"]
        }
        took = f"after {seconds((done.completed_at - done.received_at).total_seconds())}" if done.completed_at else ""
        valid = "the chain is valid" if chain.valid else "the chain is NOT valid"
        self.screen.facts({**said, "receipt": f"number {receipt['number']}, {took}; {valid}; {receipt['statement']}"})

    async def retrain_on_schedule(self, model: DemoModel, bar: Bar) -> str:
        """The policy asks for a retrain every second; the scheduler sees to it."""
        before = {job.id async for job in self.client.jobs(model=model.name, kind="retrain")}
        await self.client.change_policy(model.name, {"retrain": {"every": "1s"}})
        bar(0.0, "waiting for the scheduler")
        end = time.monotonic() + SCHEDULE_TIMEOUT_SECONDS
        while not (new := {job.id async for job in self.client.jobs(model=model.name, kind="retrain")} - before):
            if time.monotonic() > end:
                raise NotScheduled(f"no retrain was due after {SCHEDULE_TIMEOUT_SECONDS:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        await self.wait(new.pop(), bar)
        await self.client.change_policy(model.name, {"retrain": {"every": None}})
        return f"due by the policy; {await self.describe_comparison(model)}"

    async def compare_with_retrain(self, model: DemoModel, what: str, job: Job | str | None, bar: Bar) -> str:
        """Wait for an adaptation, then have a full retrain at the same position to compare it with; in words."""
        assert job is not None
        adapted = await self.wait(job, bar)
        model.steps.append((what, adapted.to_position))
        await self.wait(await self.client.retrain(model.name), bar, "to compare with: ")
        return await self.describe_comparison(model) or adapted.message

    async def describe_comparison(self, model: DemoModel) -> str:
        """What the comparison at the last position says; nothing if there is none: the model was retrained itself."""
        found = await anext(self.client.comparisons(model.name))
        if found.position != model.steps[-1][1]:
            return ""
        model.comparisons[found.position] = await self.client.version(model.name, found.adapted), found
        assert found.accuracy is not None
        assert found.cost is not None
        accuracy = f"{percent(found.accuracy.adapted)} (retrain {percent(found.accuracy.retrained)})"
        took = f"{seconds(found.cost.adapted.seconds)} (retrain {seconds(found.cost.retrained.seconds)})"
        return f"{accuracy}, {percent(found.disagreement)} of predictions differ; {took}"
