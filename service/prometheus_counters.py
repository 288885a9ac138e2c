"""Prometheus counters that this process increments. `service.prometheus_metrics` serves them."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()
REQUESTS = Counter(
    "amend_requests", "Number of HTTP requests by route and status.", ["method", "route", "status"], registry=REGISTRY
)
REQUEST_SECONDS = Histogram(
    "amend_request_seconds",
    "Duration of HTTP requests in seconds.",
    ["method", "route"],
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
EXAMPLES = Counter("amend_examples", "Number of examples received, by outcome.", ["outcome"], registry=REGISTRY)
PREDICTIONS = Counter("amend_predictions", "Number of predictions made.", registry=REGISTRY)
UNSEEN_CATEGORIES = Counter(
    "amend_unseen_categories", "Number of category values that were mapped to `other`.", ["model"], registry=REGISTRY
)


@lru_cache(maxsize=1000)
def of_route(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, str(status)), REQUEST_SECONDS.labels(method, route)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    requests, durations = of_route(method, route, status)
    requests.inc()
    durations.observe(seconds)


def count_unseen(model: str, count: int) -> None:
    if count:
        UNSEEN_CATEGORIES.labels(model).inc(count)
