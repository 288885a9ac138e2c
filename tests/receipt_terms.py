"""Technical terms on receipts, and whether the glossary of a receipt defines them."""

from __future__ import annotations

import html
import re

from core.erasure.glossary import uses
from service.erasures.printable_receipts import text_of

# fmt: off
TERMS = (
    "adapt", "analys", "anchor", "api key", "auc", "audit", "backup", "bound", "bundle", "cache", "certificate",
    "certified", "champion", "checkpoint", "coefficient", "commitment", "disagreement", "epsilon",
    "example", "gradient", "hash", "hessian", "holdout", "hyperparameter", "kernel", "kprior", "leaf",
    "ledger", "logit", "loss", "memory", "merkle", "mlflow", "model", "network", "norm", "onnx", "optimum",
    "outbox", "perturbation", "position", "postgresql", "register", "regularizer", "residual", "retrain",
    "safetensors", "salt", "schema", "sqlite", "tensor", "token", "tolerance", "vacuum", "version",
    "weights", "write-ahead",
)
# fmt: on
"""Words that a reader who does not build models may not know."""


def unexplained(page: str) -> set[str]:
    """The technical terms on a page that its glossary does not define."""
    text, _, glossary = page.partition("<h2>Glossary</h2>")
    defined = html.unescape(re.sub(r"<[^>]+>", " ", glossary)).lower()
    entries = re.findall(r"<th>(.*?)</th>", glossary)
    used = {term for term in TERMS if re.search(rf"\b{term}", text_of(text).lower())}
    return {term for term in used if not any(uses(entry, term) or term in defined for entry in entries)}
