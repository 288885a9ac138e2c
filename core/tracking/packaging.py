"""Packages a version as an MLflow model: its weights and the code that predicts with them, without pickle.

It contains nothing that only adaptations need (memory, curvature, gradients): MLflow could not erase it in time.
"""

import hashlib
import json
import warnings
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import mlflow
import torch
from mlflow.models import Model as Described
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import AnyType
from safetensors.torch import save_file

import core
from core.inference.frozen_encoders import PLUGINS
from core.kprior import State
from core.kprior.model.architectures import ENTRY_POINTS
from core.kprior.model.spec import Spec, frozen_encoder, gives_scores

FOLDERS = ("kprior/model", "inference")
"""The folders of core that prediction needs. They use relative imports, so that a copy is a package as well."""
PACKAGES = ("torch", "numpy", "pandas", "safetensors", "mlflow")


def package(
    folder: Path, described: Described, state: State, threshold: float = 0.5, encoder_file: bytes | None = None
) -> Path:
    """Write an MLflow model to a new folder below the given one; returns its path.

    `encoder_file` is the file of the model's ONNX encoder, if it has one.
    """
    made, code, weights = folder / "model", folder / "code", folder / "predictor.safetensors"
    tensors = {"w": state.w} | state.predictor.constants()
    if encoder_file is not None:
        tensors["onnx"] = torch.frombuffer(bytearray(encoder_file), dtype=torch.uint8)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {"spec": state.predictor.spec, "threshold": threshold}
    save_file(tensors, weights, metadata={"amend": json.dumps(about, sort_keys=True)})
    name = copy_code(code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow suggests an input example, which would be personal data
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
    """Copy the code that prediction needs; returns the name of the new package.

    The name contains a digest of the code, so that versions of different releases can be loaded side by side, and no
    package of the user has the same name.
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
    """The requirements for loading the model: the releases that are installed here."""
    found = [f"{name}=={version(name).split('+')[0]}" for name in PACKAGES]
    architecture = spec["architecture"]
    encoder = frozen_encoder(spec)
    if encoder is not None and encoder["kind"] == "hashing":
        found.append(f"scikit-learn=={version('scikit-learn')}")
    if encoder is not None and encoder["kind"] == "onnx":
        found.append(f"onnxruntime=={version('onnxruntime')}")
    if encoder is not None and encoder["kind"] == "plugin":
        found += packages_of(PLUGINS, encoder["name"])
    if architecture["kind"] == "plugin":
        found += packages_of(ENTRY_POINTS, architecture["name"])
    return found


def packages_of(group: str, name: str) -> list[str]:
    """The installed packages that provide an entry point."""
    points = entry_points(group=group, name=name)
    return [f"{point.dist.name}=={point.dist.version}" for point in points if point.dist]


def signature(spec: Spec) -> ModelSignature:
    """The signature: columns of a table by name, of any type because MLflow would reject integers for `double`."""
    open_, number, whole = AnyType(), DataType.double, DataType.long  # type: ignore[no-untyped-call]
    inputs = None
    if spec["input"]["kind"] == "table":
        inputs = Schema([ColSpec(open_, column["name"]) for column in spec["input"]["columns"]])
    outputs: dict[str, dict[str, Any]] = {
        "binary": {"mean": number, "class": whole},
        "classes": {"class": open_, "probabilities": open_},
        "labels": {"labels": open_, "probabilities": open_},
    }
    given = outputs.get(spec["target"]["kind"], {"mean": number})
    if gives_scores(spec):
        given = {"score": number, "class": whole}
    return ModelSignature(inputs=inputs, outputs=Schema([ColSpec(kind, name) for name, kind in given.items()]))
