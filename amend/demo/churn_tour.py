"""The second half of the demo: one day's changes to a model with a million rows, compared with refits and retrains."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from amend.client import AsyncClient
from amend.demo import customers
from amend.demo.customers import Customers
from amend.demo.refit import Refit, refit_warm
from amend.demo.screen import Bar, Screen, percent, seconds
from amend.demo.steps import MANUAL_POLICY, Steps
from amend.responses import Comparison, Job, Version

NAME = "churn"
ROWS_PER_CALL = 100_000
"""Rows per call of the client; the progress bar is updated after each call."""
DELTA = 1.0
"""The default of the regularizer."""
PERSON = 777


@dataclass(frozen=True)
class Day:
    """The cost of a day's changes, by adaptation, warm refit and full retrain."""

    adapted: Version
    compared: Comparison
    refit: Refit
    erased: float
    """Seconds from the request to the receipt."""

    @property
    def title(self) -> str:
        changes = format_thousands(customers.DAILY_JOINERS + customers.DAILY_LEAVERS)
        return f"{changes} changes in one day to a model of {format_thousands(customers.COUNT)} customers"

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by method."""
        cost = self.compared.cost
        assert cost is not None
        mine, full = cost.adapted.seconds, cost.retrained.seconds
        return {"adapted, certified": mine, "warm refit": self.refit.seconds, "full retrain": full}


class ChurnTour(Steps):
    """Customers are added and deleted, and one of them is erased."""

    def __init__(self, client: AsyncClient, screen: Screen) -> None:
        super().__init__(client, screen)
        self.customers = Customers()

    async def run(self) -> Day:
        """Run all steps. Raises StepFailed if one fails."""
        count, new, gone = customers.COUNT, customers.DAILY_JOINERS, customers.DAILY_LEAVERS
        with self.report_step(f"Train on a table of {format_thousands(count)} customers to predict who leaves"):
            with self.screen.bars([NAME]) as [bar]:
                trained = await self.train(bar)
            accuracy = f"{percent(trained.metrics['accuracy'])} holdout accuracy"
            self.screen.facts({NAME: f"15 columns; {accuracy}; trained in {seconds(trained.cost.seconds)}"})
        with self.report_step(f"One day: {new} customers added, {gone} deleted"):
            with self.screen.bars([NAME, "full retrain", "warm refit"]) as bars:
                adapted, compared, refit = await self.live_a_day(*bars)
            self.screen.facts(
                {
                    NAME: f"adapted in {seconds(adapted.cost.seconds)}, {describe_bound(adapted)}",
                    "full retrain": f"{seconds(compared.cost.retrained.seconds)}" if compared.cost else "-",
                    "warm refit": f"{seconds(refit.seconds)}: scikit-learn encodes all rows and fits them from the "
                    f"previous weights to the same precision (fit alone: {seconds(refit.fit)})",
                }
            )
        with self.report_step("Erase a customer"):
            with self.screen.bars([NAME]) as [bar]:
                done = await self.erase_person(f"customer-{PERSON}", bar)
            assert done.completed_at is not None
            erased = (done.completed_at - done.received_at).total_seconds()
            [part] = (await self.client.receipt(done))["models"]
            self.screen.facts({NAME: f"{part['words']}; receipt after {seconds(erased)}"})
        return Day(adapted, compared, refit, erased)

    async def train(self, bar: Bar) -> Version:
        count, table = customers.COUNT, self.customers.table
        await self.client.create_model(
            NAME, table(0, min(count, ROWS_PER_CALL)), target="left", subject="customer", policy=MANUAL_POLICY
        )
        async for done in self.add(0, count):
            bar(done / count, f"{done} rows sent")
        return await self.version_of(await self.client.adapt(NAME), bar)

    async def add(self, first: int, last: int) -> AsyncIterator[int]:
        """Send customers in several calls, and yield the number sent so far."""
        for start in range(first, last, ROWS_PER_CALL):
            rows = self.customers.table(start, min(start + ROWS_PER_CALL, last))
            await self.client.add_examples(NAME, rows, id="customer", subject="customer", target="left")
            yield min(start + ROWS_PER_CALL, last)

    async def live_a_day(self, adapting: Bar, retraining: Bar, refitting: Bar) -> tuple[Version, Comparison, Refit]:
        """Adapt to the changes of a day; then process the same day by a full retrain and by a warm refit."""
        count, new = customers.COUNT, customers.DAILY_JOINERS
        async for _ in self.add(count, count + new):
            adapting(0.0, "new customers sent")
        removed = await self.client.remove_examples(NAME, [f"customer-{i}" for i in range(customers.DAILY_LEAVERS)])
        assert removed.job is not None
        adapted = await self.version_of(removed.job, adapting)
        await self.wait(await self.client.retrain(NAME), retraining)
        compared = await anext(self.client.comparisons(NAME))
        refitting(0.1, "fitting")
        assert adapted.certificate is not None
        refit = await asyncio.to_thread(self.refit, adapted.certificate.relative or 0.0)
        return adapted, compared, refit

    def refit(self, precision: float) -> Refit:
        begun = time.perf_counter()
        x, y = self.customers.design(), self.customers.left.astype(float)
        encoding = time.perf_counter() - begun
        before, after = slice(0, customers.COUNT), slice(customers.DAILY_LEAVERS, None)
        return refit_warm((x[before], y[before]), (x[after], y[after]), DELTA, precision, encoding)

    async def version_of(self, job: Job | str, bar: Bar) -> Version:
        """Wait for a job and return its version."""
        number = (await self.wait(job, bar)).version
        assert number is not None
        return await self.client.version(NAME, number)


def headline(day: Day) -> str:
    """The summary at the end of the demo."""
    mine, warm, full = day.seconds.values()
    adapted = f"adapted in {seconds(mine)}, {describe_bound(day.adapted)}"
    others = f"A warm refit took {times(warm, mine)}, a full retrain {times(full, mine)}"
    return f"{day.title}: {adapted}. {others}. A customer was erased, with a receipt, in {seconds(day.erased)}."


def times(long: float, short: float) -> str:
    """
    >>> times(12.0, 0.1)
    '12.0 s (120 x)'
    """
    return f"{seconds(long)} ({long / short:.0f} x)"


def describe_bound(version: Version) -> str:
    """The number of passes that a version took, and its certified distance to a full retrain."""
    passes = f"with {version.cost.data_passes:.0f} passes over all rows"
    if version.certificate is None or version.certificate.relative is None:
        return passes
    return f"{passes}, certified to be within {100 * version.certificate.relative:.2g} % of a full retrain"


def format_thousands(number: int) -> str:
    """
    >>> format_thousands(1_000_000)
    '1 000 000'
    """
    return f"{number:,}".replace(",", " ")
