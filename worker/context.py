"""What the jobs of one process share. Made in the process itself: neither connections nor GPUs survive a fork."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from functools import cached_property

import structlog
import torch
from celery import Celery, group

from core.database import Database
from core.errors import Unavailable
from core.jobs import messages
from core.settings import Settings
from core.tracking import publisher
from core.versions import store_identity
from core.versions.store import Store

log = structlog.get_logger("worker")

HELP = "amend.help"
"""The task that helps with a job's pass; its only argument is the job's id."""
PATIENCE = 30.0
"""Seconds after which whoever was called and did not come is called again."""


class Context:
    """One per process."""

    def __init__(self, settings: Settings, celery: Celery, stopping: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings
        self.celery = celery
        self.stopping = stopping
        """Whether the worker was told to stop."""
        self.database = Database(settings)
        self.store = Store(settings.artifacts)
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._calling: threading.Thread | None = None
        publisher.sign_in(settings.mlflow_password.get_secret_value())

    @cached_property
    def store_id(self) -> str:
        """By which the database knows its store."""
        return store_identity.mark(self.database, self.store)

    @property
    def device(self) -> torch.device:
        """Where jobs are computed."""
        return self.training_devices[0]

    @cached_property
    def training_devices(self) -> list[torch.device]:
        """Where the processes that train one network are: each process of a worker has its share of the GPUs, and one
        at least, as far as they go round."""
        wanted, processes = self.settings.device, self.settings.training_processes
        if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
            return [torch.device("cpu")] * max(1, processes)
        if not torch.cuda.is_available():
            raise Unavailable("device_missing", "AMEND_DEVICE is cuda, but this worker finds no GPU.")
        index = getattr(multiprocessing.current_process(), "index", 0)
        there = torch.cuda.device_count()
        each = min(processes, there) or max(1, there // self.settings.worker_processes)
        return [torch.device("cuda", (index * each + i) % there) for i in range(each)]

    def call_for_help(self, job_id: str, queue: str, helpers: int) -> None:
        """Tell so many workers, as they become free, of a pass that they can help with; not after a while."""

        def call() -> None:
            signature = self.celery.signature(HELP, (job_id,), queue=queue, expires=PATIENCE, retry=False)
            try:
                group([signature] * helpers, app=self.celery).apply_async()
            except Exception as error:  # then nobody helps
                log.warning("nobody could be called for help", job=job_id, exc_info=error)

        # aside: without a broker it takes seconds until it fails
        if self._calling is None or not self._calling.is_alive():
            self._calling = threading.Thread(target=call, name="call for help", daemon=True)
            self._calling.start()

    def send(self, job_id: str, queue: str) -> None:
        messages.send_job(self.celery, job_id, queue)
