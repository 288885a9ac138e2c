"""`python -m migrations`: bring the database to the newest schema, and see to it that somebody holds an admin key."""

from __future__ import annotations

import sys

from core.database import Database
from core.errors import AmendError
from core.keys import keyring
from core.keys.table import Scope
from core.settings import Settings, write_private
from migrations import runner


def main() -> None:
    settings = Settings()
    database = Database(settings)
    if problem := runner.problem(database, ready=False):
        sys.exit(problem)
    before = runner.current(database)
    runner.upgrade(database)
    after = runner.current(database)
    print(f"database: at {after}" if before == after else f"database: from {before or 'empty'} to {after}")
    assert settings.secret  # made now, before several processes need it at once
    with database.write() as session:
        runner.lock(session.connection())
        if keyring.has_admin(session):
            return
        if given := settings.admin_key.get_secret_value():
            keyring.enter(session, given, "first admin", [Scope.ADMIN], None)
            print("admin key: as given")
            return
        _, text = keyring.issue(session, "first admin", [Scope.ADMIN], None)
        path = settings.folder / "admin.key"
        write_private(path, text)
        print(f"admin key: written to {path}")


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(f"{error.code}: {error.detail}")
