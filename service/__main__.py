"""`python -m service`: run the REST service with the address and the number of processes from the settings."""

import gc
import os
import shutil
import sys

import uvicorn

from core.errors import AmendError
from core.metadata import secret_matches, subjects_match
from core.settings import from_environment, split_list
from core.versions import store_identity
from core.versions.orphan_files import sweep
from core.versions.store import Store
from migrations.runner import open_database


def main() -> None:
    os.umask(0o077)  # files are readable by their owner only
    settings = from_environment()
    database = open_database(settings)
    with database.write() as session:
        if not secret_matches(session, settings.secret):
            sys.exit("AMEND_SECRET_KEY differs from the key of this database. Set it to the original value.")
        if not subjects_match(session, settings.caseless_subjects):
            sys.exit("AMEND_CASELESS_SUBJECTS differs from the setting of this database. Restore it.")
    store = Store(settings.artifacts)
    store_identity.begin(database, store)
    sweep(database, store)
    database.close()
    if settings.processes > 1:
        # prometheus_client sums the counters of all processes in this folder; files of the last run are obsolete
        folder = settings.folder / f"metrics-{settings.port}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    gc.disable()  # collecting garbage during imports takes half a second; the application enables it again
    uvicorn.run(
        "service.app:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.processes,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=split_list(settings.trusted_proxies),
        http="service.http.connection_limits:LimitedProtocol",
        ws="none",
        timeout_graceful_shutdown=10,
    )


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
