"""Pages read the database as often for a model with a long history as for a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from core.clock import now
from core.models import catalog
from core.tables.keys import Scope
from core.tables.quality import QualityWindow
from service.context import Context
from service.http.auth import Caller
from service.pages.model import read_page
from service.pages.overview import load_overview
from service.pages.privacy.registers import show_register
from service.pages.privacy.worklist import show_worklist
from service.pages.sign_in import Visitor
from tests.service.erasure_helpers import ask, model_with_person, somebody
from tests.service.expect import add, rows
from tests.stack import Stack

FIRST_PAGE = {"jobs": None, "versions": None, "promotions": None}


@pytest.fixture
def context(stack: Stack) -> Iterator[Context]:
    made = Context(stack.settings)
    yield made
    made.close()


def count_queries(context: Context, page: Callable[[], Any]) -> int:
    """The number of statements that a page runs, once its caches are filled."""
    page()
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        statements.append(statement)

    sa.event.listen(context.database.engine, "before_cursor_execute", note)
    page()
    sa.event.remove(context.database.engine, "before_cursor_execute", note)
    return len(statements)


def enter_window(stack: Stack, name: str, number: int) -> None:
    with stack.database.write() as session:
        model = catalog.find(session, name, None)
        metrics = {"champion": {"loss": 0.4 + number / 100}}
        span = {
            "first_position": number,
            "last_position": number,
            "rows": 10,
            "weight": 10.0,
            "heaviest": 0.1,
            "champion": 1,
        }
        start = now() - timedelta(days=number)
        window = QualityWindow(model_id=model.id, job_id=str(number), start=start, alarm=False, metrics=metrics, **span)
        session.add(window)


def test_the_queries_of_a_page_do_not_grow_with_versions(stack: Stack, api: httpx.Client, context: Context) -> None:
    name = stack.model()
    add(api, name, rows(6))
    caller = Caller("key", "", frozenset(Scope), frozenset({name}))
    visitor = Visitor(caller, "token")
    counts = []
    for versions in (2, 9):
        for number in range(versions):
            stack.train(name)
            enter_window(stack, name, 10 * versions + number)
        counts.append(
            (
                count_queries(context, lambda: read_page(context, caller, name, FIRST_PAGE)),
                count_queries(context, lambda: load_overview(context, visitor, "")),
            )
        )
    assert counts[0] == counts[1]
    [card] = load_overview(context, visitor, "").cards
    assert (card.on_new_data, len(card.history)) == (True, 11)
    assert card.history[-1] == pytest.approx(0.4 + 98 / 100)


def test_the_queries_of_the_privacy_page_do_not_grow_with_requests(
    stack: Stack, api: httpx.Client, context: Context
) -> None:
    visitor = Visitor(Caller("key", "", frozenset(Scope), None), "token")
    counts = []
    for _ in range(2):
        for _ in range(3):
            person = somebody()
            model_with_person(stack, api, person)
            ask(api, person, hold=True)
        pages = (show_worklist, show_register)
        counts.append([count_queries(context, lambda page=page: page(visitor, context)) for page in pages])
    assert counts[0] == counts[1]
