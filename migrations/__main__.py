"""`python -m migrations`: upgrade the database to the newest schema and make sure that an admin key exists."""

from __future__ import annotations

import os
import sys

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import AmendError, Invalid
from core.keys import api_keys, queries
from core.metadata import secret_matches
from core.settings import Settings, from_environment, write_private
from core.tables.keys import Scope
from core.versions.store import Store
from migrations import runner


def main() -> None:
    os.umask(0o077)  # files written here are readable only by their owner
    settings = from_environment()
    Store(settings.artifacts)  # fails if its driver is missing, before anything is created
    database = Database(settings)
    if problem := runner.find_problem(database, ready=False):
        sys.exit(problem)
    before = runner.current(database)
    try:
        runner.upgrade(database)
    except SQLAlchemyError as error:
        if runner.find_reason(error) is None:
            raise
        sys.exit(runner.describe(database, error))
    after = runner.current(database)
    print(f"database: at {after}" if before == after else f"database: upgraded from {before or 'empty'} to {after}")
    with database.write() as session:
        runner.lock(session.connection())
        if not secret_matches(session, settings.secret):
            raise Invalid(
                "secret_mismatch", "AMEND_SECRET_KEY differs from the key that this database was created with."
            )
        print(f"admin key: {ensure_admin_key(session, settings)}")


def ensure_admin_key(session: Session, settings: Settings) -> str:
    """Make sure that AMEND_ADMIN_KEY, if set, or else any admin key exists; returns a description of it."""
    given, path = settings.admin_key.get_secret_value(), settings.folder / "admin.key"
    if given:
        if api_keys.check(session, given):
            return "AMEND_ADMIN_KEY"
        try:
            api_keys.add(session, given, "AMEND_ADMIN_KEY", [Scope.ADMIN], None)
        except IntegrityError:
            raise Invalid("key_revoked", "AMEND_ADMIN_KEY was revoked. Set another key.") from None
        return "AMEND_ADMIN_KEY"
    if queries.has_admin(session):
        return "exists already (if it is lost, set a new one as AMEND_ADMIN_KEY)"
    _, text = api_keys.issue(session, "first admin", [Scope.ADMIN], None)
    write_private(path, text)
    return f"written to {path}"


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
