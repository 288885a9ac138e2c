"""What can be asked of the service: every endpoint, described once for both clients.

A noun gets (``client.model("churn")``), its plural walks through all (``for model in client.models()``), a verb acts.
"""

from __future__ import annotations

from amend.operations.erasures import Erasures
from amend.operations.exports import Exports
from amend.operations.http import HttpMethods
from amend.operations.imports import Imports
from amend.operations.jobs import Jobs
from amend.operations.keys import Keys
from amend.operations.models import Models
from amend.operations.predictions import Predictions
from amend.operations.versions import Versions
from amend.operations.webhooks import Webhooks


class Operations(Models, Imports, Exports, Jobs, Versions, Predictions, Erasures, Keys, Webhooks, HttpMethods):
    """One method for each thing to do."""
