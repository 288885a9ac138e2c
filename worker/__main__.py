"""`python -m worker`: runs jobs from the configured queues, by default all, until it receives a signal to stop."""

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from celery import signals
from redis import Redis, RedisError

from core.database import Database
from core.errors import AmendError
from core.jobs import worker_heartbeats
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
    signals.heartbeat_sent.connect(note_connection, weak=False)  # sent while the broker is connected
    signals.worker_ready.connect(start_heartbeats, weak=False)
    options = ["--loglevel", settings.log_level, "--concurrency", str(settings.worker_processes), "--without-gossip"]
    options += ["--without-mingle", "--queues", ",".join(queues), "--hostname", f"{os.getpid()}@%h"]
    if all(name.endswith("-gpu") for name in queues):
        options += ["--max-tasks-per-child", "1"]  # a process returns its GPU memory only when it ends
    app.worker_main(["worker", *options])


connected_at = 0.0
"""When Celery last reported its connection to the broker, on the monotonic clock."""


def note_connection(**_: Any) -> None:
    global connected_at
    connected_at = time.monotonic()


def start_heartbeats(sender: Any, **_: Any) -> None:
    note_connection()
    threading.Thread(target=send_heartbeats, args=(from_environment(), str(sender)), daemon=True).start()


def send_heartbeats(settings: Settings, name: str) -> None:
    """Report every few seconds that this worker is alive: in the database for /readyz, in a file for health checks."""
    # a child forked during a transaction would inherit its locks and never release them
    writing = threading.Lock()
    os.register_at_fork(before=writing.acquire, after_in_parent=writing.release, after_in_child=writing.release)
    pause = threading.Event()
    while True:
        if is_alive(settings):
            (settings.folder / "worker.alive").touch()
            with writing, suppress(AmendError):  # readyz reports that the database is down
                database = Database(settings.model_copy(update={"database_timeout": HEARTBEAT_SECONDS}))
                try:
                    with database.write() as session:
                        worker_heartbeats.record_heartbeat(session, name)
                finally:
                    database.close()
        pause.wait(HEARTBEAT_SECONDS)


def is_alive(settings: Settings) -> bool:
    """Whether this worker takes jobs, or would if the broker were up.

    Restarting a worker because the broker is down would only interrupt its jobs. A worker that has no connection
    although the broker responds needs a restart.
    """
    return time.monotonic() - connected_at < settings.worker_timeout or not broker_responds(settings)


def broker_responds(settings: Settings) -> bool:
    url = settings.broker.replace("redis+socket://", "unix://")
    try:
        with Redis.from_url(url, socket_timeout=HEARTBEAT_SECONDS, socket_connect_timeout=HEARTBEAT_SECONDS) as client:
            return bool(client.ping())
    except RedisError:
        return False


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
