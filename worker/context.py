"""Resources that the jobs of one process share, created after the fork: neither connections nor GPUs survive it."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from functools import cached_property

import torch
from celery import Celery

from core.database import Database
from core.encoders.loaded_encoders import FrozenEncoders
from core.errors import Unavailable
from core.jobs import messages
from core.settings import Settings
from core.tracking import publisher
from core.versions import store_identity
from core.versions.store import Store
from worker.executors.base import Executor, InProcess


class Context:
    """Settings, database, store and executor of one worker process."""

    def __init__(self, settings: Settings, celery: Celery, stopping: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings
        self.celery = celery
        self.stopping = stopping
        """Whether the worker is shutting down."""
        self.database = Database(settings)
        self.store = Store(settings.artifacts)
        self.encoders = FrozenEncoders(self.store, settings)
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        publisher.sign_in(settings.mlflow_password.get_secret_value())

    @cached_property
    def store_id(self) -> str:
        """The identity by which the database recognises its store."""
        return store_identity.identify(self.database, self.store)

    @cached_property
    def device(self) -> torch.device:
        """The device for computations. The processes of a worker share its GPUs evenly."""
        wanted = self.settings.device
        if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise Unavailable("device_missing", "AMEND_DEVICE is cuda, but this worker has no GPU.")
        index = getattr(multiprocessing.current_process(), "index", 0)
        return torch.device("cuda", index % torch.cuda.device_count())

    @cached_property
    def executor(self) -> Executor:
        """Where long computations run."""
        if not self.settings.ray_address:
            return InProcess()
        from worker.executors.ray_executor import OnRay  # an optional dependency that takes a second to import

        return OnRay(self.settings, self.database, self.device)

    def end_job(self) -> None:
        """Release resources that are only needed during a job."""
        if "executor" in vars(self):
            self.executor.close()

    def send(self, job_id: str, queue: str) -> None:
        messages.send_job(self.celery, job_id, queue)
