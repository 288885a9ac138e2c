"""A field is declared once: columns and responses share classes, and the client's and engine's types are generated."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from amend import responses
from core.kprior import Certificate
from core.kprior.model import spec_types
from core.models.spec import KernelArchitectureSchema
from core.settings import Settings
from core.tables import documents
from core.tables.jobs import Job
from core.tables.versions import Comparison, Version
from service.app import build
from service.jobs.schemas import JobResponse
from service.openapi import document_of
from service.versions.schemas import ComparisonResponse, VersionResponse
from tools.client_types import NAMES, TYPED_DICTIONARIES, Generator


@pytest.fixture
def document() -> dict[str, Any]:
    return document_of(build(Settings()))


def test_a_field_that_is_added_to_a_response_reaches_the_client(document: dict[str, Any]) -> None:
    version = document["components"]["schemas"]["VersionResponse"]
    version["properties"]["colour"] = {"type": "string", "description": "Colour of the version."}
    version["required"].append("colour")
    generated = Generator(document).generate()
    assert '    colour: str\n    """Colour of the version."""' in generated.partition("class Version(")[2]


def test_the_client_has_every_field_of_every_response(document: dict[str, Any]) -> None:
    generator = Generator(document)
    generator.generate()
    assert generator.found.keys() > {"Version", "Certificate", "Audit", "Comparison", "Job", "Erasure", *NAMES.values()}
    for name, schema in generator.found.items():
        if name not in TYPED_DICTIONARIES:
            fields = {field.encode_name for field in msgspec.structs.fields(getattr(responses, name))}
            assert fields == schema["properties"].keys(), name


def stored(table: type, column: str) -> Any:
    """The class of a document in a JSON column."""
    return get_args(get_type_hints(table)[column])[0]


def test_the_database_stores_the_classes_that_the_service_returns() -> None:
    version, job = VersionResponse.model_fields, JobResponse.model_fields
    assert version["certificate"].annotation == stored(Version, "certificate") == Certificate | None
    assert version["cost"].annotation is stored(Version, "cost") is documents.CostDocument
    assert version["memory"].annotation is stored(Version, "memory") is documents.MemoryDocument
    assert job["error"].annotation == stored(Job, "error") == documents.JobError | None
    stored_fields = stored(Comparison, "result").__annotations__
    assert stored_fields.items() <= ComparisonResponse.__annotations__.items()


def test_the_engine_has_every_field_of_the_spec() -> None:
    assert spec_types.KernelArchitecture.__annotations__.keys() == KernelArchitectureSchema.model_fields.keys()
