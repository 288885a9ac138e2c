"""The glossary of receipts: what the technical terms on a receipt mean, for readers who do not build models."""

import re

GLOSSARY = {
    "Analysis": "a computation about a model that somebody requested, such as what would change without some examples. "
    "Its result is stored.",
    "API key": "the credential of a program or person that uses the service. Actions are recorded under its name.",
    "Audit": "the chance that one of the examples looks more familiar to the model than one that it never saw. At 0.5 "
    "the two cannot be told apart; with few examples the figure varies by chance.",
    "Audit log": "the record of who changed, read, exported or downloaded what, and when.",
    "Backup": "a copy of a database or of files, from which they can be restored.",
    "Bound": "a proven upper limit on the distance between the model's numbers and those of a model that was trained "
    "without this data. A model above its tolerance is trained again instead.",
    "Bundle": "a file with the receipt and the evidence for it.",
    "Cache": "a copy in the memory of a running program.",
    "Certified removal": "a promise about how well anyone could tell the model from one that was trained without this "
    "data: epsilon and delta limit the chance, and the residual must stay below its limit.",
    "Coefficients": "the weights of a model, listed by name.",
    "Disagreement": "the share of predictions in which an adapted and a retrained version differ.",
    "Encoder": "a fixed part of a model that turns raw data into numbers. The service does not train it.",
    "Example": "one record with its answer, from which a model learns.",
    "Hash": "a number computed from data, by which the same data can be recognised. A keyed hash can be computed only "
    "by the holder of a secret key, a salted one only with a random number that is deleted together with the data.",
    "Head": "the part of a model that learns from the numbers of its encoder.",
    "Holdout": "examples that a model is tested on, and never trained on.",
    "Loss": "how wrong the predictions of a model are on average; 0 is perfect.",
    "Memory": "the examples that a version refers to when it is adapted.",
    "MLflow": "the program that shows the versions of a model to its developers, and keeps copies of them.",
    "Model": "a program that has learnt from examples to make predictions.",
    "Network": "a model for which no bound can be computed. What is left of removed data is measured instead.",
    "ONNX": "a file format in which a model can be used by other programs.",
    "Optimum": "the weights with the smallest loss on the training examples.",
    "Perturbation": "random noise that was added to the training, so that weights reveal less about single examples.",
    "Position": "the number of an entry in a model's list of examples.",
    "PostgreSQL": "the database that stores the examples.",
    "Register": "an append-only log of everything that happens to requests. Each entry is called a leaf.",
    "Retrained": "trained again from scratch.",
    "Adapted": "changed toward what training without this data would have given, without training again from scratch.",
    "SQLite": "the database that stores the examples.",
    "Version": "the state of a model at one time. One version makes the predictions: the version in use, or champion.",
    "Weights": "the numbers that a model has learnt.",
    "Write-ahead log": "a file in which a database keeps recent changes for a while.",
}
"""All terms. A receipt contains the definitions of those that it uses."""
OTHER_FORMS = {
    "Adapted": "adapted|adaptation",
    "Analysis": "analys[ei]s",
    "Backup": "backups?",
    "Bundle": "bundles?",
    "Cache": "caches?",
    "Example": "examples?",
    "Hash": "hash(?:es)?|salted",
    "Head": "retrain of the head",
    "Model": "models?",
    "Network": "networks?",
    "Perturbation": "perturbation|perturbed",
    "Position": "positions?",
    "Register": "register|leaf",
    "Retrained": "retrained|retrain",
    "Version": "versions?|champion",
}
"""Patterns of terms that also occur in other forms."""


def select_glossary(text: str) -> dict[str, str]:
    """The definitions of the terms in a text, and of the terms in these definitions.

    >>> list(select_glossary("1 example, found by its position"))
    ['Example', 'Model', 'Position']
    """
    found: dict[str, str] = {}
    while new := {term: meaning for term, meaning in GLOSSARY.items() if term not in found and uses(text, term)}:
        found |= new
        text = " ".join(new.values())
    return dict(sorted(found.items(), key=lambda entry: entry[0].lower()))


def uses(text: str, term: str) -> bool:
    """Whether a text uses a term, in whatever form."""
    return re.search(rf"\b(?:{OTHER_FORMS.get(term, re.escape(term))})\b", text, re.IGNORECASE) is not None
