"""What the service answers, as typed objects. The names are those of the REST API.

Fields that this version of the client does not know are passed over, so that it goes on working with a newer
service; words such as states are plain text for the same reason.
"""

from amend.responses.base import Answer, Failure, Page
from amend.responses.comparisons import Coefficient, Comparison, Costs, Difference, Figure, Side, SideBySide, Sides
from amend.responses.erasures import (
    Chain,
    Erasure,
    Erasures,
    Event,
    ExportedExample,
    Flaw,
    Holding,
    Lookup,
    Part,
    Receipt,
    ReceiptModel,
    Refusal,
    Replayed,
    Retried,
)
from amend.responses.examples import Added, Example, Removal, Removed, Replaced
from amend.responses.jobs import Job
from amend.responses.models import Change, Changed, Counts, Held, Model, Resumed
from amend.responses.operations import Health, IssuedKey, Key, Readiness
from amend.responses.predictions import Prediction, Predictions
from amend.responses.versions import (
    Certificate,
    Cost,
    Memory,
    NamedCoefficient,
    Promoted,
    Promotion,
    RemovalPromise,
    Version,
)
from amend.responses.webhooks import CreatedWebhook, Delivery, Webhook

__all__ = [
    "Added",
    "Answer",
    "Certificate",
    "Chain",
    "Change",
    "Changed",
    "Coefficient",
    "Comparison",
    "Cost",
    "Costs",
    "Counts",
    "CreatedWebhook",
    "Delivery",
    "Difference",
    "Erasure",
    "Erasures",
    "Event",
    "Example",
    "ExportedExample",
    "Failure",
    "Figure",
    "Flaw",
    "Health",
    "Held",
    "Holding",
    "IssuedKey",
    "Job",
    "Key",
    "Lookup",
    "Memory",
    "Model",
    "NamedCoefficient",
    "Page",
    "Part",
    "Prediction",
    "Predictions",
    "Promoted",
    "Promotion",
    "Readiness",
    "Receipt",
    "ReceiptModel",
    "Refusal",
    "Removal",
    "RemovalPromise",
    "Removed",
    "Replaced",
    "Replayed",
    "Resumed",
    "Retried",
    "Side",
    "SideBySide",
    "Sides",
    "Version",
    "Webhook",
]
