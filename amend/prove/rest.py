"""The responses of a service to every GET request that its OpenAPI document lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from amend.prove.twin import Twin

LIMIT = 100
PARAMETERS: dict[str, tuple[dict[str, str], ...]] = {
    "/v1/models/{name}/quality": tuple({"window": window} for window in ("hour", "day", "week", "job")),
    "/v1/models/{name}/examples": (
        {},
        {"state": "quarantined"},
        {"label": "pending"},
        {"split": "holdout"},
    ),
    "/v1/models/{name}/examples/export": ({"format": "parquet"},),
}
"""Query parameters of endpoints that return something else with them."""


def responses(twin: Twin, labels: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Places and bodies; errors are responses, too."""
    document = twin.http.get("/openapi.json").json()
    named = {label: id_ for id_, label in labels.items()}
    for path, operations in sorted(document["paths"].items()):
        if "get" not in operations:
            continue
        for filled in fill(twin, path, named):
            for parameters in PARAMETERS.get(path, ({},)):
                shown = "&".join(f"{name}={value}" for name, value in parameters.items())
                for page, body in enumerate(pages(twin, filled, parameters)):
                    yield f"{filled}?{shown}/page {page}", body


def pages(twin: Twin, path: str, parameters: dict[str, str]) -> Iterator[Any]:
    """All pages of a list, or the one response."""
    after: Any = None
    while True:
        query = parameters | ({"after": str(after)} if after is not None else {})
        response = twin.http.get(path, params=query)
        yield {"status": response.status_code, "body": body_of(response)}
        parsed = response.json() if "json" in response.headers.get("content-type", "") else None
        after = parsed.get("next") if isinstance(parsed, dict) else None
        if after is None:
            return


def body_of(response: Any) -> Any:
    kind = response.headers.get("content-type", "")
    if "json" in kind:
        return response.json()
    return response.text.splitlines() if kind.startswith("text/") else response.content


def fill(twin: Twin, path: str, named: dict[str, str]) -> Iterator[str]:
    """The path with every combination of its parameters."""
    names = re.findall(r"{(\w+)}", path)
    if "name" not in names:
        for values in product(*(ids_for(path, name, None, twin, named) for name in names)):
            yield substitute(path, dict(zip(names, values, strict=True)))
        return
    for model in models(twin):
        rest = [name for name in names if name != "name"]
        for values in product(*(ids_for(path, name, model, twin, named) for name in rest)):
            yield substitute(path, {"name": model, **dict(zip(rest, values, strict=True))})


def substitute(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def models(twin: Twin) -> list[str]:
    return [model["name"] for model in twin.http.get("/v1/models", params={"limit": LIMIT}).json()["items"]]


def ids_for(path: str, parameter: str, model: str | None, twin: Twin, named: dict[str, str]) -> list[str]:
    """The values of a parameter of a path: version numbers, or ids of what the path is about."""
    if parameter in ("n", "a", "b"):
        listed = twin.http.get(f"/v1/models/{model}/versions", params={"limit": LIMIT}).json()["items"]
        numbers = [str(version["version"]) for version in listed]
        # a version is compared with the newest one, not with every other
        return numbers[:1] if parameter == "b" else numbers
    noun = next((noun for noun in ("jobs", "erasures", "removals", "webhooks") if f"/{noun}/" in path), None)
    if noun is not None:
        return [named[label] for label in named if label.startswith(f"<{noun} ")]
    if "/examples/" in path:
        listed = twin.http.get(f"/v1/models/{model}/examples", params={"limit": 20}).json()["items"]
        return [example["id"] for example in listed]
    raise NotImplementedError(f"GET {path}: no values are known for {{{parameter}}}")
