"""The responses of a service to every GET request that its OpenAPI document lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from amend.prove.twin import Twin

LIMIT = 100
LIMITS = {"examples": 20}
"""How many elements of a list are read one by one."""
KEYS = {"models": "name", "versions": "version", "receipts": "number"}
"""The field that identifies an element of a list; `id` in all others."""
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
    """Places and bodies; errors are responses as well."""
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
    found = re.search(r"{(\w+)}", path)
    if found is None:
        yield path
        return
    for value in values_of(twin, path[: found.start()], found[1], named):
        yield from fill(twin, path.replace(found[0], value, 1), named)


def values_of(twin: Twin, start: str, parameter: str, named: dict[str, str]) -> list[str]:
    """The values of a path's parameter: names, numbers or ids in the list that the path begins with."""
    start = start.replace("/v2/", "/v1/").rstrip("/")
    if parameter in ("n", "a", "b"):
        start = "/".join(start.split("/")[:4]) + "/versions"
    noun = start.rpartition("/")[2]
    response = twin.http.get(start, params={"limit": LIMITS.get(noun, LIMIT)})
    if response.is_success:
        found = [str(item[KEYS.get(noun, "id")]) for item in response.json()["items"]]
    else:  # there is no list of them
        found = [id_ for label, id_ in named.items() if label.startswith(f"<{noun} ")]
    # a version is compared with the newest one, not with every other
    return found[:1] if parameter == "b" else found
