"""`python -m migrations`: bring the database to the newest schema, and see to it that somebody holds an admin key."""

from __future__ import annotations

import os
import sys

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import AmendError, Invalid
from core.keys import keyring, queries
from core.metadata import secret_matches
from core.settings import Settings, from_environment, write_private
from core.tables.keys import Scope
from core.versions.store import Store
from migrations import runner


def main() -> None:
    os.umask(0o077)  # what is written here is for its owner alone
    settings = from_environment()
    Store(settings.artifacts)  # if there is no driver for it, that is told before anything is made
    database = Database(settings)
    if problem := runner.problem(database, ready=False):
        sys.exit(problem)
    before = runner.current(database)
    try:
        runner.upgrade(database)
    except SQLAlchemyError as error:
        if runner.reason(error) is None:
            raise
        sys.exit(runner.described(database, error))
    after = runner.current(database)
    print(f"database: at {after}" if before == after else f"database: from {before or 'empty'} to {after}")
    with database.write() as session:
        runner.lock(session.connection())
        if not secret_matches(session, settings.secret):
            raise Invalid("secret_mismatch", "AMEND_SECRET_KEY is not the one that this database was made with.")
        print(f"admin key: {admin_key(session, settings)}")


def admin_key(session: Session, settings: Settings) -> str:
    """See to it that there is an admin key: the given one, or else any; what came of it."""
    given, path = settings.admin_key.get_secret_value(), settings.folder / "admin.key"
    if given:
        if keyring.check(session, given):
            return "as given"
        try:
            keyring.add(session, given, "admin key as given", [Scope.ADMIN], None)
        except IntegrityError:
            raise Invalid("key_revoked", "AMEND_ADMIN_KEY was revoked; give another.") from None
        return "as given"
    if queries.has_admin(session):
        return "there is one already (lost? give a new one as AMEND_ADMIN_KEY)"
    _, text = keyring.issue(session, "first admin", [Scope.ADMIN], None)
    write_private(path, text)
    return f"written to {path}"


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
