"""The methods of both clients: one for each endpoint of the service.

A noun returns one object (``client.model("churn")``), its plural iterates over all (``client.models()``), and a verb
performs an action (``client.adapt("churn")``).
"""

from __future__ import annotations

from amend.operations.analyses import Analyses
from amend.operations.audit import Audit
from amend.operations.encoders import Encoders
from amend.operations.erasures import Erasures
from amend.operations.exports import Exports
from amend.operations.http import HttpMethods
from amend.operations.imports import Imports
from amend.operations.jobs import Jobs
from amend.operations.keys import Keys
from amend.operations.models import Models
from amend.operations.predictions import Predictions
from amend.operations.rights import Rights
from amend.operations.versions import Versions
from amend.operations.webhooks import Webhooks


class Operations(
    Models,
    Imports,
    Exports,
    Jobs,
    Versions,
    Predictions,
    Analyses,
    Encoders,
    Erasures,
    Rights,
    Keys,
    Webhooks,
    Audit,
    HttpMethods,
):
    """All methods of the clients."""
