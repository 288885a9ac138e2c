"""What a receipt does not cover. Each sentence is on a receipt exactly if it is true of the erasure."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from core.erasure.receipt_content import ModelReport
from core.ledger.spec_history import spec_at
from core.settings import Settings
from core.tables.ledger import HAS_CONTENT, Example, PendingExample
from core.tables.models import Model

CACHE = "models_of_receipts"


@dataclass(frozen=True)
class ModelsOutside:
    """Models about which a search by person says nothing, or not everything."""

    unsearchable: list[str]
    """Models with examples that have no subject."""
    toward: list[str]
    """Models whose regularizer draws the weights toward given numbers."""


def find_models_outside(session: Session) -> ModelsOutside:
    """Once for all receipts of a transaction: a model whose examples all have subjects is read completely."""
    found: ModelsOutside | None = session.info.get(CACHE)
    if found is None:
        stored = exists().where(Example.model_id == Model.id, Example.subject.is_(None), HAS_CONTENT)
        waiting = exists().where(PendingExample.model_id == Model.id, PendingExample.subject.is_(None))
        without = select(Model.name).where(sa.or_(stored, waiting)).order_by(Model.name)
        models = session.scalars(select(Model).order_by(Model.name)).all()
        specs = {model.name: spec_at(session, model.id, model.spec, model.head) for model in models}
        toward = [name for name, spec in specs.items() if spec["regularizer"].get("toward") is not None]
        found = session.info[CACHE] = ModelsOutside(list(session.scalars(without)), toward)
    return found


def write_limits(
    settings: Settings,
    identifiers: int,
    near_matches: int,
    models: Sequence[ModelReport],
    outside: ModelsOutside,
    exports: Sequence[str],
) -> list[str]:
    """The sentences of a receipt about what it does not cover. `exports` are the times when the person's data was
    exported, in order.
    """
    which = "this identifier" if identifiers == 1 else f"these {identifiers} identifiers"
    case = " Upper and lower case make no difference." if settings.caseless_subjects else ""
    found = [
        f"Only examples stored under {which} were searched for, spelt as in the request.{case} Examples about the "
        "person under another identifier, or without one, were not found."
    ]
    if near_matches:
        spellings = "1 similar spelling" if near_matches == 1 else f"{near_matches} similar spellings"
        found.append(
            f"When the request was filed, there were examples under {spellings} that the request does not include. "
            "They were not erased."
        )
    if outside.unsearchable:
        found.append(
            "These models also have examples that are not assigned to any person, and that could not be searched: "
            f"{', '.join(outside.unsearchable)}."
        )
    found += describe_copies(settings, models)
    if exports:
        times = "once" if len(exports) == 1 else f"{len(exports)} times, the last time"
        found.append(
            f"The data under {which} was exported or reported {times} on {exports[-1][:10]}, as for a request for "
            "access. Amend cannot delete these copies."
        )
    found.append("Backups were not searched. They may contain this data until the operator deletes them.")
    if outside.toward:
        found.append(
            "The training of these models draws their weights toward numbers that somebody supplied (the setting "
            f"`toward`): {', '.join(outside.toward)}. It is not known whether the numbers were computed from this data."
        )
    return found


def describe_copies(settings: Settings, models: Sequence[ModelReport]) -> list[str]:
    """What is known about copies of the data outside of Amend."""
    if not models:
        return []
    if any(model.copies for model in models):
        found = ["The copies listed above left Amend before the erasure. Amend cannot delete them."]
    else:
        found = [
            "The audit log shows no download of versions trained on this data, and no export of all examples. It keeps "
            f"its entries for {describe_days(settings.audit_retention)}."
        ]
    found.append("It was not examined who read this data in lists of examples.")
    if settings.mlflow_url:
        found.append("MLflow does not record who loaded a version from it.")
    return found


def describe_days(duration: str) -> str:
    """
    >>> describe_days("400d"), describe_days("1d")
    ('400 days', '1 day')
    """
    days = duration.removesuffix("d")
    return f"{days} day{'' if days == '1' else 's'}"
