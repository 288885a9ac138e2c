"""Python clients of Amend's REST API, and the ``amend`` command.

    from amend import Client

This package imports no other package of the project. It talks to them over REST or starts them as processes, so that
the command starts quickly and does not load torch to print its help.
"""

from amend.client import AsyncClient, Client
from amend.dataframe_schema import FrameSchema, read_schema
from amend.errors import (
    AmendError,
    ApiError,
    Conflict,
    ErasureFailed,
    EstimatorUnsupported,
    Forbidden,
    FrameInvalid,
    Invalid,
    JobFailed,
    KeyMissing,
    NotFound,
    PackageMissing,
    Unavailable,
    UnreachableError,
)

__all__ = [
    "AmendError",
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "ErasureFailed",
    "EstimatorUnsupported",
    "Forbidden",
    "FrameInvalid",
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
