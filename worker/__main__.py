"""`python -m worker`: runs jobs from the configured queues, by default all, until it receives a signal to stop."""

import gc
import os
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from celery import signals

from core.database import Database
from core.errors import AmendError
from core.jobs import workers
from core.jobs.messages import TRACKING_QUEUE
from core.jobs.queue import QUEUES
from core.settings import Settings, from_environment
from core.versions import store_identity
from core.versions.store import Store
from migrations.runner import open_database

HEARTBEAT_SECONDS = 5.0
"""Between two heartbeats of a worker."""


def main() -> None:
    os.umask(0o077)  # only the owner may read the files
    settings = from_environment()
    if settings.ray_address and find_spec("ray") is None:
        sys.exit("AMEND_RAY_ADDRESS is set, but Ray is not installed. Run: pip install 'amend[server,ray]'")
    database = open_database(settings)
    store_identity.begin(database, Store(settings.artifacts))
    database.close()
    gc.disable()  # garbage collection during imports takes a third of a second
    from worker.app import app

    gc.freeze()  # later collections skip the modules: visiting them would copy their memory pages into each child
    gc.enable()
    known = (*QUEUES, TRACKING_QUEUE)
    queues = settings.queue_names or list(known)
    if unknown := set(queues) - set(known):
        sys.exit(f"AMEND_QUEUES: unknown queue {min(unknown)!r}. Queues: {', '.join(known)}.")
    alive = settings.folder / "worker.alive"
    signals.heartbeat_sent.connect(lambda **_: alive.touch(), weak=False)  # sent while the broker is connected
    signals.worker_ready.connect(start_heartbeats, weak=False)
    options = ["--loglevel", settings.log_level, "--concurrency", str(settings.worker_processes), "--without-gossip"]
    options += ["--without-mingle", "--queues", ",".join(queues), "--hostname", f"{os.getpid()}@%h"]
    if all(name.endswith("-gpu") for name in queues):
        options += ["--max-tasks-per-child", "1"]  # a process returns its GPU memory only when it ends
    app.worker_main(["worker", *options])


def start_heartbeats(sender: Any, **_: Any) -> None:
    threading.Thread(target=send_heartbeats, args=(from_environment(), str(sender)), daemon=True).start()


def send_heartbeats(settings: Settings, name: str) -> None:
    """Write a heartbeat of this worker to the database every few seconds while the process lives."""
    # a child forked during a transaction would inherit its locks and never release them
    writing = threading.Lock()
    os.register_at_fork(before=writing.acquire, after_in_parent=writing.release, after_in_child=writing.release)
    pause = threading.Event()
    while True:
        with writing, suppress(AmendError):  # readyz reports that the database is down
            database = Database(settings.model_copy(update={"database_timeout": HEARTBEAT_SECONDS}))
            try:
                with database.write() as session:
                    workers.record_heartbeat(session, name)
            finally:
                database.close()
        pause.wait(HEARTBEAT_SECONDS)


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
