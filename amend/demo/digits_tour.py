"""The first half of the demo: changes to two digits models, step by step, over REST."""

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
    """A digits model and its history."""

    name: str
    images: Callable[..., Columns]
    spec: dict[str, Any]
    deltas: tuple[float, float]
    """Delta of the regularizer before and after its change."""
    steps: list[tuple[str, int]] = field(default_factory=list)
    """Each change, and the position of the ledger after it."""
    comparisons: dict[int, tuple[Version, Comparison]] = field(default_factory=dict)
    """By position: the adapted version and its comparison."""
    first: float = 0.0
    """Accuracy after the first training."""

    def lines(self) -> dict[str, dict[int, float]]:
        """Accuracy of the adapted and the retrained model by position, as the service reported it.

        MLflow has rounded values, and an erasure deletes those of versions that were trained on the person's data.
        """
        pairs = {at: found.accuracy for at, (_, found) in self.comparisons.items() if found.accuracy is not None}
        adapted = {at: pair.adapted for at, pair in pairs.items()}
        return {
            "adapted": {self.steps[0][1]: self.first, **adapted},
            "retrained": {at: pair.retrained for at, pair in pairs.items()},
        }


class NotScheduled(Exception):
    """The scheduler did not start a retrain that was due."""


class Tour(Steps):
    """Applies all steps to both models."""

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
                    # Networks trained from different initial weights differ on about 1 % of the images.
                    "policy": {**POLICY, "tolerance": {"disagreement": 0.03}},
                },
                (0.5, 0.2),
            ),
        ]

    async def run(self) -> None:
        """Run all steps. Raises StepFailed if one fails."""
        await self.step("Train on the digits 0 to 8", self.train)
        await self.step("Add the digit 9", self.add_nine)
        await self.step("Remove the digit 8", self.remove_eight)
        await self.step("Change the regularizer", self.change_delta)
        await self.step("Reduce the degree from 2 to 1: a simpler, less accurate model", self.simplify)
        await self.erase("Erase a person from all models")
        await self.step("Retrain on schedule, to compare with the models after the erasure", self.retrain_on_schedule)

    async def step(self, title: str, act: Callable[[DemoModel, Bar], Awaitable[str]]) -> None:
        """Run a step for both models at the same time, then print the result of each."""
        names = [model.name for model in self.models]
        with self.report_step(title), self.screen.bars(names) as bars:
            results = await asyncio.gather(*(act(model, bar) for model, bar in zip(self.models, bars, strict=True)))
        self.screen.facts(dict(zip(names, results, strict=True)))

    async def train(self, model: DemoModel, bar: Bar) -> str:
        examples = model.images(*range(9))
        regularizer = {"kind": "l2", "delta": model.deltas[0]}
        source = {"kind": "vector", "dim": examples["x"].shape[1]}
        await self.client.create_model(model.name, source, {"kind": "binary"}, regularizer=regularizer, **model.spec)
        added = await self.client.add_examples(model.name, examples)
        job = await self.wait(await self.client.adapt(model.name), bar)
        assert job.version is not None
        version = await self.client.version(model.name, job.version)
        model.steps.append(("0 to 8", version.position))
        model.first = version.metrics["accuracy"] or 0.0
        accuracy = f"{percent(version.metrics['accuracy'])} holdout accuracy"
        return f"{added.accepted} examples; {accuracy}; trained in {seconds(version.cost.seconds)}"

    async def add_nine(self, model: DemoModel, bar: Bar) -> str:
        added = await self.client.add_examples(model.name, model.images(9))
        job = await self.client.adapt(model.name)
        return f"{added.accepted} examples added; {await self.compare_with_retrain(model, '9 added', job, bar)}"

    async def remove_eight(self, model: DemoModel, bar: Bar) -> str:
        removed = await self.client.remove_examples(model.name, model.images(8)["id"].tolist())
        comparison = await self.compare_with_retrain(model, "8 removed", removed.job, bar)
        return f"{removed.removed} examples removed; {comparison}"

    async def change_delta(self, model: DemoModel, bar: Bar) -> str:
        old, new = model.deltas
        changed = await self.client.change_model(model.name, regularizer={"kind": "l2", "delta": new})
        change = f"delta {old:g} → {new:g}"
        return f"{change}; {await self.compare_with_retrain(model, change, changed.job, bar)}"

    async def simplify(self, model: DemoModel, bar: Bar) -> str:
        if model.spec["architecture"]["kind"] != "linear":
            bar(1.0, "")
            return "unchanged, since a network has no degree"
        changed = await self.client.change_model(model.name, architecture={"kind": "linear", "degree": 1})
        change = "degree 2 → 1"
        return f"{change}; {await self.compare_with_retrain(model, change, changed.job, bar)}"

    async def erase(self, title: str) -> None:
        with self.report_step(title), self.screen.bars([PERSON]) as [bar]:
            done = await self.erase_person(PERSON, bar)
            receipt = await self.client.receipt(done)
            chain = await self.client.verify_receipts()
            for model in self.models:
                model.steps.append(("person erased", (await self.client.model(model.name)).head))
        results = {
            part["model"]: f"{part['examples']} examples of {PERSON}; {part['words']}" for part in receipt["models"]
        }
        took = f"after {seconds((done.completed_at - done.received_at).total_seconds())}" if done.completed_at else ""
        valid = "the chain of receipts is valid" if chain.valid else "the chain of receipts is NOT valid"
        self.screen.facts(
            {**results, "receipt": f"number {receipt['number']}, {took}; {valid}; {receipt['statement']}"}
        )

    async def retrain_on_schedule(self, model: DemoModel, bar: Bar) -> str:
        """Set the policy to retrain every second, and wait for the scheduler to start a retrain."""
        before = {job.id async for job in self.client.jobs(model=model.name, kind="retrain")}
        await self.client.change_policy(model.name, {"retrain": {"every": "1s"}})
        bar(0.0, "waiting for the scheduler")
        end = time.monotonic() + SCHEDULE_TIMEOUT_SECONDS
        while not (new := {job.id async for job in self.client.jobs(model=model.name, kind="retrain")} - before):
            if time.monotonic() > end:
                raise NotScheduled(f"The scheduler started no retrain within {SCHEDULE_TIMEOUT_SECONDS:.0f} s.")
            await asyncio.sleep(POLL_SECONDS)
        await self.wait(new.pop(), bar)
        await self.client.change_policy(model.name, {"retrain": {"every": None}})
        return f"started by the scheduler; {await self.describe_comparison(model)}"

    async def compare_with_retrain(self, model: DemoModel, change: str, job: Job | str | None, bar: Bar) -> str:
        """Wait for an adaptation, run a full retrain at the same position, and describe the comparison."""
        assert job is not None
        adapted = await self.wait(job, bar)
        model.steps.append((change, adapted.to_position))
        await self.wait(await self.client.retrain(model.name), bar, "full retrain: ")
        return await self.describe_comparison(model) or adapted.message

    async def describe_comparison(self, model: DemoModel) -> str:
        """Describe the comparison at the last position; empty if the job retrained the model, so that there is none."""
        found = await anext(self.client.comparisons(model.name))
        if found.position != model.steps[-1][1]:
            return ""
        model.comparisons[found.position] = await self.client.version(model.name, found.adapted), found
        assert found.accuracy is not None
        assert found.cost is not None
        accuracy = f"{percent(found.accuracy.adapted)} (retrain {percent(found.accuracy.retrained)})"
        took = f"{seconds(found.cost.adapted.seconds)} (retrain {seconds(found.cost.retrained.seconds)})"
        return f"accuracy {accuracy}, {percent(found.disagreement)} of predictions differ; {took}"
