"""Checks of one model in a bundle: its weights, its certificate, its rows, and the refit.

The signed receipt commits to the file with the weights and states the certified distance. Everything else that a refit
needs comes from the bundle; the receipt may repeat it.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from amend.verification.bundle import Bundle
from amend.verification.documents import Document
from amend.verification.families import Array, Categorical, family_of, one_hot
from amend.verification.findings import Refuted, Undecided
from amend.verification.objective import Objective
from amend.verification.receipt import Statement
from amend.verification.refit import Refit, refit
from amend.verification.retained_rows import Rows, read_rows
from amend.verification.tensors import Tensors

ROUNDING = 1e-9
"""Largest error of a refit, relative to the weights, that counts as rounding error rather than as imprecision."""
MAX_WIDTH = 2**24
"""Maximum number of outputs, and of features."""
PRECISION = 0.1
"""Largest error of a refit, relative to the certified distance, with which the two can be compared."""


@dataclass(frozen=True)
class Version:
    """One version of a model, as a bundle describes it."""

    fields: Document
    model: str
    number: int
    signed: Document | None
    """The part of the signed report about this model."""

    @property
    def title(self) -> str:
        return f"model {self.model}, version {self.number}"

    @property
    def certified(self) -> bool:
        """Whether a distance was certified, so that a refit can check it."""
        stated = self.fields.inner("certificate") if "certificate" in self.fields else None
        claims = [claim for claim in (stated, self.signed_part("certificate")) if claim is not None]
        return any("bound" in claim for claim in claims)

    def signed_part(self, name: str) -> Document | None:
        """A part of the description as the signed report repeats it; None if the report does not."""
        return self.signed.inner(name) if self.signed is not None and name in self.signed else None


def read_version(bundle: Bundle, name: str, statement: Statement) -> Version:
    """Read ``versions/MODEL.json``. The model in it must be the one in the file's name."""
    fields = bundle.document(name)
    model = fields.text("model")
    if name != f"versions/{model}.json":
        raise Refuted(f"{name} describes the model {model}.")
    return Version(fields, model, fields.integer("version"), statement.model(model))


def check_weights(bundle: Bundle, version: Version, statement: Statement) -> str:
    """Verify that the receipt commits to the file with the weights."""
    subject = f"model/{version.model}/version/{version.number}"
    if subject not in statement.subjects:
        raise Refuted(f"The receipt does not name {subject}.")
    digest, salt = bundle.hash(version.fields.text("weights")), version.fields.digest("salt")
    if digest != version.fields.digest("sha256"):
        raise Refuted(f"{version.fields.text('weights')} is not the file that {version.fields.where} describes.")
    if hashlib.sha256(salt + digest).digest() != statement.subjects[subject]:
        raise Refuted(f"The receipt commits to a different file than {version.fields.text('weights')}.")
    return f"sha256 {digest.hex()[:16]}..."


def check_certificate(version: Version) -> tuple[float, str]:
    """The certified distance, which must be the one in the signed receipt."""
    certificate = version.fields.inner("certificate")
    bound = certificate.number("bound")
    if bound < 0:
        raise certificate.wrong("bound", "positive")
    if version.signed is None or "certificate" not in version.signed:
        raise Undecided("The signed receipt has no certificate of this version.")
    signed = version.signed.inner("certificate").fields
    if version.signed.integer("version") != version.number or "bound" not in signed:
        raise Refuted("The signed receipt certifies a different version, or no distance.")
    if any(signed[name] != value for name, value in certificate.fields.items() if name in signed):
        raise Refuted("The certificate in the bundle differs from the one in the signed receipt.")
    return bound, f"within {bound:.3g} of the exact minimum"


def check_rows(bundle: Bundle, version: Version, columns: int) -> tuple[Rows, str]:
    """Verify that the rows in the bundle are those that the stated Merkle root commits to."""
    if "rows_file" not in version.fields:
        raise Undecided(
            "The bundle does not contain the rows. Download it again with --rows. If you did, they have changed since "
            "the receipt: other examples were erased, or came back into use after a request was refused or withdrawn."
        )
    rows = read_rows(Tensors(bundle, version.fields.text("rows_file")), columns)
    stated = version.fields.inner("rows")
    signed = version.signed_part("rows")
    if signed is None:
        signed = stated
    for claim in (stated, signed):
        if len(rows.positions) != claim.integer("count"):
            raise Refuted(f"The bundle has {len(rows.positions)} rows; {claim.where} states {claim.integer('count')}.")
    root = rows.root()
    if root != stated.digest("root") or root != signed.digest("root"):
        raise Refuted("The rows do not match the Merkle root: a row was changed, added, removed or moved.")
    return rows, f"{len(rows.positions)} rows, root {root.hex()[:16]}..." + (
        ", not in the signed receipt" if signed is stated else ""
    )


@dataclass(frozen=True)
class Parameters:
    """The weights (K, D) under test, and the tensors of the objective in the same shape."""

    weights: Array
    delta: Array
    toward: Array
    perturbation: Array


def objective_of(version: Version) -> Document:
    """The stated objective, which must be the one in the signed receipt if the receipt has it."""
    stated = version.fields.inner("objective")
    signed = version.signed_part("objective")
    if signed is not None and signed.fields != stated.fields:
        raise Refuted("The objective in the bundle differs from the one in the signed receipt.")
    return stated


def read_shape(objective: Document) -> tuple[int, int]:
    """The number of outputs and of features."""
    numbers = [number for number in objective.items("shape") if isinstance(number, int) and 0 < number <= MAX_WIDTH]
    if len(numbers) != 2 or len(objective.items("shape")) != 2:
        raise objective.wrong("shape", f"two numbers between 1 and {MAX_WIDTH}")
    return numbers[0], numbers[1]


def read_parameters(bundle: Bundle, version: Version) -> tuple[Parameters, str]:
    """The tensors of the objective, and a description of it."""
    tensors = Tensors(bundle, version.fields.text("weights"))
    objective = objective_of(version)
    shape = read_shape(objective)

    def read(name: str) -> Array:
        array = tensors.numbers(objective.text(name), 1)
        if array.size != shape[0] * shape[1]:
            raise Refuted(f"{tensors.where}: `{objective.text(name)}` does not have the shape of the objective.")
        return array.reshape(shape)

    def optional(name: str) -> Array:
        return read(name) if name in objective else np.zeros(shape)

    found = Parameters(read("weights"), read("delta"), optional("toward"), optional("perturbation"))
    if bool((found.delta < 0).any()):
        raise Refuted(f"{tensors.where}: `delta` must not be negative.")
    signed = "as in the signed receipt" if version.signed_part("objective") is not None else "not in the signed receipt"
    return found, f"{objective.text('family')}, {found.delta.size} weights, {signed}"


def build_objective(version: Version, parameters: Parameters, rows: Rows) -> Objective:
    """The objective that the bundle states. Raises Refuted if its parts do not fit each other."""
    family = family_of(objective_of(version))
    classes = len(parameters.weights)
    targets = rows.targets
    if isinstance(family, Categorical) and targets.ndim == 1:
        targets = one_hot(targets, classes, "The rows")
    targets = targets.reshape(len(targets), -1)
    if targets.shape[1] != classes or not family.admits(targets):
        raise Refuted("The targets of the rows do not fit the family of the objective.")
    found = Objective(
        family,
        rows.features,
        targets,
        rows.sample_weights,
        parameters.delta,
        parameters.toward,
        parameters.perturbation,
    )
    perturbation = parameters.perturbation
    if abs(perturbation - found.without_shift(perturbation)).max(initial=0.0) > ROUNDING * abs(perturbation).max():
        raise Refuted("The stated objective has no minimum: its perturbation acts on an unpenalised direction.")
    return found


def check_refit(version: Version, parameters: Parameters, rows: Rows, bound: float) -> str:
    """Minimise the objective, and compare the minimum with the weights."""
    objective = build_objective(version, parameters, rows)
    with np.errstate(all="ignore"):
        found = attempt_refit(objective)
        gap = objective.without_shift(parameters.weights - found.weights.reshape(objective.shape))
        distance, size = float(np.linalg.norm(gap)), float(np.linalg.norm(parameters.weights))
    figures = f"distance {distance:.3g}, certified {bound:.3g}, error of the refit at most {found.error:.1g}"
    if distance + found.error <= bound:
        return figures
    if distance - found.error > bound:
        raise Refuted(f"The weights are further from the minimum than certified: {figures}.")
    # the comparison is within the refit's own error: it counts only if that is small
    if math.isfinite(distance) and found.error <= max(PRECISION * bound, ROUNDING * max(size, 1.0)):
        return figures
    raise Undecided(f"The refit is not precise enough: {figures}.")


def attempt_refit(objective: Objective) -> Refit:
    try:
        return refit(objective)
    except (ValueError, ArithmeticError):  # scipy's way to report numbers that overflowed
        raise Undecided("The refit failed: the rows or penalties contain numbers that are too large.") from None
