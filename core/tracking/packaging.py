"""A version as an MLflow model: its weights, and the code that predicts with them. No pickle, no past.

Left out is all that only adaptations need: memory, curvature, gradients. MLflow cannot erase those in time.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import mlflow
from mlflow.models import Model as Described
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import AnyType
from safetensors.torch import save_file

import core
from core.kprior import State
from core.kprior.model.architectures import ENTRY_POINTS
from core.kprior.model.spec import Spec, gives_scores

FOLDERS = ("kprior/model", "inference")
"""Of core: all that predicting needs. They import by relative names, so a copy of them is a package, too."""
PACKAGES = ("torch", "numpy", "pandas", "safetensors", "mlflow")


def package(folder: Path, state: State, described: Described) -> Path:
    """Write an MLflow model to a new folder below the given one, and tell which."""
    made, code, weights = folder / "model", folder / "code", folder / "predictor.safetensors"
    tensors = {"w": state.w} | {f"encoder.{k}": v for k, v in state.predictor.encoder.state_dict().items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, weights, metadata={"amend": json.dumps({"spec": state.predictor.spec}, sort_keys=True)})
    name = copy_code(code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an input example, which would be somebody's data
        mlflow.pyfunc.save_model(
            path=str(made),
            loader_module=f"{name}.inference.published_model",
            data_path=str(weights),
            code_paths=[str(code / name)],
            mlflow_model=described,
            signature=signature(state.spec),
            pip_requirements=requirements(state.spec),
        )
    return made


def copy_code(folder: Path) -> str:
    """Copy what predicting needs; the name of the package that it became.

    The name holds a digest of the code: versions made by different releases can be loaded side by side, and no
    package of the user's has that name.
    """
    name = f"amend_{digest()}"
    for file, text in sources().items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in (folder / name, folder / name / "kprior"):
        (package / "__init__.py").touch()
    return name


@cache
def sources() -> dict[str, str]:
    root = Path(str(core.__file__)).parent
    found = sorted(path for folder in FOLDERS for path in (root / folder).glob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text() for path in found}


@cache
def digest() -> str:
    return hashlib.sha256(json.dumps(sources()).encode()).hexdigest()[:12]


def requirements(spec: Spec) -> list[str]:
    """What a process that loads the model needs: the very releases that run here."""
    found = [f"{name}=={version(name).split('+')[0]}" for name in PACKAGES]
    architecture = spec["architecture"]
    if architecture["kind"] == "plugin":
        for point in entry_points(group=ENTRY_POINTS, name=architecture["name"]):
            found += [f"{point.dist.name}=={point.dist.version}"] if point.dist else []
    return found


def signature(spec: Spec) -> ModelSignature:
    """Columns of a table by name. MLflow would refuse whole numbers for `double`, so their type is left open."""
    open_, number, whole = AnyType(), DataType.double, DataType.long  # type: ignore[no-untyped-call]
    inputs = None
    if spec["input"]["kind"] == "table":
        inputs = Schema([ColSpec(open_, column["name"]) for column in spec["input"]["columns"]])
    outputs: dict[str, dict[str, Any]] = {
        "binary": {"mean": number, "class": whole},
        "classes": {"class": open_, "probabilities": open_},
    }
    given = outputs.get(spec["target"]["kind"], {"mean": number})
    if gives_scores(spec):
        given = {"score": number, "class": whole}
    return ModelSignature(inputs=inputs, outputs=Schema([ColSpec(kind, name) for name, kind in given.items()]))
