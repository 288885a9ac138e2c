"""The steps of the demo: a model of a million customers goes through every kind of change, over REST."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amend.client import AsyncClient
from amend.demo import customers
from amend.demo.customers import DAYS, PARTNER, SOURCES, Customers, name_of
from amend.demo.refit import Refit, refit_warm
from amend.demo.screen import Bar, Screen, percent, seconds, small_percent, thousands
from amend.demo.steps import MANUAL_POLICY, Measured, Steps, Stopwatch
from amend.responses import Analysis, Comparison, QualityWindow, Version
from amend.verification import verify_bundle

NAME = "churn"
ROWS_PER_CALL = 100_000
"""Rows per call of the client; the progress bar is updated after each call."""
DELTA, NEW_DELTA = 1.0, 10.0
"""The regularizer before and after its change."""
DROPPED = "minutes_abroad"
PERSON = 5000
COLUMNS = {"id": "customer", "subject": "customer", "target": "left"}


class Unexpected(Exception):
    """The service answered, but not as the demo says it does."""


@dataclass
class Story:
    """What happened, for the table and the chart."""

    week: list[QualityWindow] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    losses: list[tuple[str, float]] = field(default_factory=list)
    """Holdout loss after each step, in order."""
    rejected: tuple[str, float] | None = None
    """The step before the rejected version, and the holdout loss of that version."""
    precision: float = 0.0
    """The largest bound of the week."""
    retrain: Measured | None = None
    refit: Refit | None = None
    position: int = 0
    """The last position of the ledger."""

    def learn(self, what: str, version: Version) -> None:
        self.losses.append((what, version.metrics["loss"] or 0.0))


class ChurnTour(Steps):
    """Trains, adapts every day, rejects a bad batch, removes a bad source, changes the model and erases a customer."""

    def __init__(self, client: AsyncClient, screen: Screen, folder: Path) -> None:
        """`folder`: for the files that the verification reads."""
        super().__init__(client, screen)
        self.customers, self.folder, self.story = Customers(), folder, Story()

    async def run(self) -> Story:
        """Run all steps. Raises StepFailed if one fails."""
        with self.report_step(f"Train on a table of {thousands(customers.COUNT)} customers to predict who leaves"):
            await self.train()
        with self.report_step(
            f"A week: {thousands(customers.DAILY_JOINERS)} customers added and {customers.DAILY_LEAVERS} deleted "
            "each day; most new ones have a new phone, whose battery is defective"
        ):
            await self.live_a_week()
        with self.report_step(f"A bad batch: {thousands(customers.BAD_COUNT)} customers with the labels swapped"):
            await self.reject_batch()
        with self.report_step("An analysis before a change: which source makes the model worse?"):
            preview = await self.analyse()
        with self.report_step(f"Remove the source {PARTNER!r}"):
            await self.remove_source(preview)
        with self.report_step("Change the regularizer, and drop a column"):
            await self.change_model()
        with self.report_step("Erase a customer, and verify the receipt offline"):
            await self.erase()
        with self.report_step("For comparison: a full retrain, and a refit with scikit-learn"):
            await self.compare()
        return self.story

    async def train(self) -> None:
        count, watch = customers.COUNT, Stopwatch()
        with self.screen.bars([NAME]) as [bar]:
            first = self.customers.table(slice(0, min(count, ROWS_PER_CALL)))
            await self.client.create_model(NAME, first, target="left", subject="customer", policy=MANUAL_POLICY)
            await self.add(slice(0, count - len(SOURCES) * customers.SOURCE_COUNT), bar)
            for name, rows in self.customers.sources.items():
                await self.add(rows, bar, source=name)
            sent = watch.seconds
            trained = await self.version_of(NAME, await self.client.adapt(NAME), bar)
        self.story.learn("trained", trained)
        accuracy = f"{percent(trained.metrics['accuracy'])} holdout accuracy"
        self.screen.facts(
            {NAME: f"15 columns; sent in {seconds(sent)}; trained in {seconds(watch.seconds - sent)}; {accuracy}"}
        )

    async def add(self, rows: slice, bar: Bar, day: int | None = None, source: str | None = None) -> None:
        """Send customers in several calls. Those of a source are not in the holdout, whose labels must be right."""
        for start in range(rows.start, rows.stop, ROWS_PER_CALL):
            table = self.customers.table(slice(start, min(start + ROWS_PER_CALL, rows.stop)), day)
            if source in SOURCES:
                table = table.append_column("split", [["train"] * len(table)])
            await self.client.add_examples(NAME, table, source=source, **COLUMNS)
            bar(min(1.0, (start + len(table)) / customers.COUNT), f"{thousands(start + len(table))} rows sent")

    async def live_a_week(self) -> None:
        """Adapt the model at the end of each day; then show how well each day was predicted before it was learnt."""
        days = []
        with self.screen.bars([NAME]) as [bar]:
            for day in range(DAYS):
                watch = Stopwatch()
                await self.add(self.customers.joiners(day), bar, day)
                removed = await self.client.remove_examples(NAME, self.customers.leavers(day))
                adapted = await self.version_of(NAME, removed.job, bar)
                days.append(watch.measure(f"a day: {thousands(customers.daily_changes())} changes", adapted))
                self.story.learn(f"day {day + 1}", adapted)
            self.story.week = [window async for window in self.client.quality(NAME, window="day")]
        self.story.measured.append(sorted(days, key=lambda day: day.seconds)[DAYS // 2])
        self.story.precision = max(day.bound or 0.0 for day in days)
        self.screen.facts(
            {
                f"{window.from_:%A}": f"accuracy on the new customers {percent(window.champion['accuracy'])} "
                f"(never updated: {percent(window.frozen['accuracy'] if window.frozen else None)}); "
                f"then adapted in {seconds(took.seconds)}, {describe(took)}"
                for window, took in zip(self.story.week, days, strict=True)
            }
        )

    async def reject_batch(self) -> None:
        """Send the bad batch, show how it is held, and discard it."""
        before = await self.client.model(NAME)
        with self.screen.bars([NAME]) as [bar]:
            await self.add(self.customers.bad, bar, DAYS, "bad load")
            watch = Stopwatch()
            version = await self.version_of(NAME, await self.client.adapt(NAME), bar)
            self.story.measured.append(watch.measure(f"{thousands(customers.BAD_COUNT)} bad rows rejected", version))
            held, gate = await self.client.model(NAME), version.gate
            if version.state != "rejected" or gate is None or held.champion != before.champion:
                raise Unexpected(f"Version {version.version} is {version.state}, not rejected.")
            await self.client.discard(NAME, version.version)
            after = await self.client.model(NAME)
        self.story.rejected = (self.story.losses[-1][0], gate.candidate or 0.0)
        if (after.counts.train, after.counts.quarantined) != (before.counts.train, 0):
            raise Unexpected("The model does not have the examples that it had before the batch.")
        self.screen.facts(
            {
                "rejected": f"version {version.version}, after {seconds(self.story.measured[-1].seconds)}: its loss on "
                f"{thousands(gate.rows)} earlier holdout customers is {gate.candidate:.3f} instead of "
                f"{gate.champion:.3f}, {sigmas(gate.difference, gate.difference_se)} worse",
                "held": f"{thousands(held.counts.quarantined)} rows are in quarantine; "
                f"version {held.champion} keeps serving",
                "undone": f"discarded: {thousands(after.counts.train)} training rows, as before",
            }
        )

    async def analyse(self) -> Analysis:
        """Compute the effect of each source, and preview the removal of the worst. The model does not change."""
        with self.screen.bars([NAME]) as [bar]:
            bar(0.1, "influence of each source")
            found = await self.client.analyse(NAME, {"kind": "influence", "by": "source"})
            bar(0.5, "preview of removing the worst source")
            watch = Stopwatch()
            preview = await self.client.preview(NAME, remove={"source": PARTNER})
        rows, result = result_of(found)["rows"], result_of(preview)
        if min(rows, key=lambda row: row["effect"])["source"] != PARTNER:
            raise Unexpected(f"The analysis does not find that {PARTNER} is the worst source.")
        took = Measured("removal of a source previewed", watch.seconds, result["passes"], result["relative_bound"])
        self.story.measured.append(took)
        effects = {
            row["source"]: f"without its {thousands(row['examples'])} customers, the holdout loss would change by "
            f"{row['effect']:+.5f} ({sigmas(row['effect'], row['effect_se'])})"
            for row in rows
        }
        passes = "the gate would pass" if result["gate"]["passed"] else "the gate would not pass"
        loss = f"loss {result['before']['loss']:.5f} → {result['after']['loss']:.5f}; {passes}"
        self.screen.facts({**effects, "preview": f"{loss}; {seconds(took.seconds)}, {describe(took)}"})
        return preview

    async def remove_source(self, preview: Analysis) -> None:
        watch, promised = Stopwatch(), result_of(preview)["after"]["loss"]
        with self.screen.bars([NAME]) as [bar]:
            removed = await self.client.remove_examples(NAME, source=PARTNER)
            version = await self.version_of(NAME, removed.job, bar)
        took = watch.measure(f"source of {thousands(customers.SOURCE_COUNT)} rows removed", version)
        self.story.measured.append(took)
        self.story.learn("source removed", version)
        loss = version.metrics["loss"] or 0.0
        kept = "as previewed" if abs(loss - promised) < 1e-6 else f"the preview said {promised:.5f}"
        self.screen.facts({NAME: f"loss {loss:.5f}, {kept}; adapted in {seconds(took.seconds)}, {describe(took)}"})

    async def change_model(self) -> None:
        changes: dict[str, dict[str, Any]] = {
            f"delta {DELTA:g} → {NEW_DELTA:g}": {"regularizer": {"kind": "l2", "delta": NEW_DELTA}},
            "column dropped": {"drop_columns": [DROPPED]},
        }
        lines = {}
        for what, change in changes.items():
            watch = Stopwatch()
            with self.screen.bars([what]) as [bar]:
                changed = await self.client.change_model(NAME, **change)
                version = await self.version_of(NAME, changed.job, bar)
            took = watch.measure(what, version)
            self.story.measured.append(took)
            self.story.learn(what, version)
            lines[what] = f"loss {version.metrics['loss']:.5f}; adapted in {seconds(took.seconds)}, {describe(took)}"
        self.screen.facts(lines)

    async def erase(self) -> None:
        """Erase a customer, then check the evidence as an auditor would: with a copy of the key from before."""
        bundle, key = self.folder / "bundle.zip", self.folder / "register-key.json"
        key.write_text(json.dumps(await self.client.register_key()))
        watch = Stopwatch()
        with self.screen.bars([name_of(PERSON)]) as [bar]:
            done = await self.erase_person(name_of(PERSON), bar)
            version = await self.client.version(NAME, "champion")
            took = watch.measure("customer erased, with receipt", version)
            bar(0.9, "verifying the receipt")
            bundle.write_bytes(await self.client.bundle(done))
            found = await asyncio.to_thread(verify_bundle, bundle, key)
        if not found.passed:
            raise Unexpected("The bundle of the erasure failed its verification.")
        self.story.measured.append(took)
        self.story.learn("customer erased", version)
        [part] = (await self.client.receipt(done))["models"]
        # The first clause of each sentence is what is not proven; the rest explains it.
        unproven = [re.split("[.:]", sentence)[0].lower() for sentence in found.unproven]
        self.screen.facts(
            {
                NAME: f"{part['words']}; receipt after {seconds(took.seconds)}",
                "verified": f"{len(found.checks)} of {len(found.checks)} checks passed, without the service: "
                + ", ".join(check.what for check in found.checks),
                "not proven": "; ".join(unproven),
            }
        )

    async def compare(self) -> None:
        """Retrain at the same position, and refit the last day's changes with scikit-learn."""
        watch = Stopwatch()
        with self.screen.bars(["full retrain", "warm refit"]) as [retraining, refitting]:
            job = await self.wait(await self.client.retrain(NAME), retraining)
            took = watch.seconds
            found: Comparison = await anext(self.client.comparisons(NAME))
            refitting(0.1, "fitting")
            refit = await asyncio.to_thread(self.refit, self.story.precision)
        assert found.cost is not None
        self.story.retrain = Measured("full retrain", took, found.cost.retrained.data_passes)
        self.story.refit, self.story.position = refit, job.to_position
        differ = f"{percent(found.disagreement)} of predictions differ from those of the adapted version"
        self.screen.facts(
            {
                "full retrain": f"{seconds(took)}, {found.cost.retrained.data_passes:.0f} passes; {differ}",
                "warm refit": f"{seconds(refit.seconds)}: scikit-learn encodes all rows of the last day and fits "
                f"them from the previous weights to within {small_percent(self.story.precision)} "
                f"(fit alone: {seconds(refit.fit)})",
            }
        )

    def refit(self, precision: float) -> Refit:
        begun = time.perf_counter()
        x, y = self.customers.design(), self.customers.left[: self.customers.week.stop].astype(float)
        encoding = time.perf_counter() - begun
        after = slice(DAYS * customers.DAILY_LEAVERS, None)
        before = slice((DAYS - 1) * customers.DAILY_LEAVERS, len(y) - customers.DAILY_JOINERS)
        return refit_warm((x[before], y[before]), (x[after], y[after]), DELTA, precision, encoding)


def result_of(analysis: Analysis) -> dict[str, Any]:
    assert analysis.result is not None
    return analysis.result


def sigmas(difference: float | None, error: float | None) -> str:
    """
    >>> sigmas(-0.006, 0.002)
    '3 standard errors'
    """
    return f"{abs(difference or 0.0) / error:.0f} standard errors" if error else "no standard error"


def describe(took: Measured) -> str:
    """
    >>> describe(Measured("a day", 0.2, 0.0, 0.0012)), describe(Measured("a day", 0.2, 1.0))
    ('no pass over all rows, within 0.12 % of a retrain', '1 pass over all rows')
    """
    count = round(took.passes or 0)
    passes = f"{count or 'no'} pass{'es' if count > 1 else ''} over all rows"
    return passes if took.bound is None else f"{passes}, within {small_percent(took.bound)} of a retrain"
