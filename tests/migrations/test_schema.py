"""Migrations and models describe the same schema, and every migration can be reverted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from core.database import Database
from core.tables import Base
from migrations import runner
from tests.core.conftest import MakeSettings


@pytest.fixture
def database(make_settings: MakeSettings) -> Iterator[Database]:
    database = Database(make_settings())
    yield database
    database.close()


def tables(database: Database) -> set[str]:
    return set(sa.inspect(database.engine).get_table_names()) - {"alembic_version", "sqlite_sequence"}


def partial_indexes(database: Database) -> dict[str, str]:
    """The conditions of partial indexes by name, as the database reports them."""
    if database.sqlite:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
    else:
        query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE '% WHERE %'"
    with database.engine.connect() as connection:
        return {name: text.partition(" WHERE ")[2] for name, text in connection.execute(sa.text(query))}


def columns(database: Database) -> dict[str, tuple[str, bool]]:
    """Type and nullability of every column, as the database reports them."""
    inspector = sa.inspect(database.engine)
    return {
        f"{table}.{column['name']}": (repr(column["type"]), column["nullable"])
        for table in tables(database)
        for column in inspector.get_columns(table)
    }


def test_upgrade_downgrade_and_upgrade_again(database: Database) -> None:
    assert runner.current(database) is None
    runner.upgrade(database)
    assert runner.current(database) == runner.newest()
    assert tables(database) == set(Base.metadata.tables)
    runner.downgrade(database, "base")
    assert runner.current(database) is None
    assert tables(database) == set()
    runner.upgrade(database)
    assert tables(database) == set(Base.metadata.tables)


def test_models_and_migrations_agree(database: Database) -> None:
    runner.upgrade(database)
    with database.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_the_migrated_schema_is_the_one_that_the_models_would_create(
    database: Database,
    make_settings: MakeSettings,
) -> None:
    runner.upgrade(database)
    created = Database(make_settings())
    Base.metadata.create_all(created.engine)
    assert columns(database) == columns(created)
    assert partial_indexes(database) == partial_indexes(created)
    assert {"uq_examples_id_in_force", "uq_jobs_queued", "uq_jobs_running"} <= partial_indexes(database).keys()
    created.close()


def test_a_failed_migration_leaves_nothing_behind(database: Database) -> None:
    with database.engine.execution_options(writes=True).begin() as connection:
        connection.execute(sa.text("CREATE TABLE versions (n INTEGER)"))
    with pytest.raises(sa.exc.SQLAlchemyError):
        runner.upgrade(database)
    assert tables(database) == {"versions"}
    assert runner.current(database) is None
