"""The user's side of Amend: clients of its REST API, and the ``amend`` command.

    from amend import Client

It imports no other package of the project. What it needs of them it gets over REST or by starting
a process, so that the command answers at once and does not load torch to print its help.
"""

from amend.client import AsyncClient, Client
from amend.errors import (
    AmendError,
    ApiError,
    Conflict,
    ErasureFailed,
    EstimatorUnsupported,
    Forbidden,
    Invalid,
    JobFailed,
    KeyMissing,
    NotFound,
    PackageMissing,
    Unavailable,
    UnreachableError,
)
from amend.frame_schema import FrameSchema, read_schema

__all__ = [
    "AmendError",
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "ErasureFailed",
    "EstimatorUnsupported",
    "Forbidden",
    "FrameSchema",
    "Invalid",
    "JobFailed",
    "KeyMissing",
    "NotFound",
    "PackageMissing",
    "Unavailable",
    "UnreachableError",
    "read_schema",
]
