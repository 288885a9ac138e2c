"""Write the engine's types of a spec from `core.models.spec`, so that a field is declared once.

The engine needs types of its own: `core/kprior/model` is copied into published models, which load without pydantic.

    python -m tools.spec_types           write core/kprior/model/spec_types.py
    python -m tools.spec_types --check   exit with status 1 if that file is out of date (`make check` runs this)
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from core.models import pipeline_steps, schema_changes, sequential_layers, spec
from tools.generated import write_or_check

TARGET = Path(__file__).parent.parent / "core/kprior/model/spec_types.py"
HEADER = '''"""Types of a spec as JSON and state files store it: plain dictionaries, distinguished by `kind`.

Generated from core/models/spec.py, which describes the fields, by tools/spec_types.py: do not edit.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict
'''
CHANGED: dict[str, type[BaseModel]] = {
    "NumberColumn": schema_changes.ChangedNumberColumnSchema,
    "BooleanColumn": schema_changes.ChangedBooleanColumnSchema,
    "DateColumn": schema_changes.ChangedDateColumnSchema,
    "CategoryColumn": schema_changes.ChangedCategoryColumnSchema,
    "ClassesTarget": schema_changes.ChangedClassesSchema,
}
"""Parts that say more in a change of the spec; the engine reads both forms."""
UNIONS = {
    "Column": spec.ColumnSchema,
    "Input": spec.InputSchema,
    "Target": spec.TargetSchema,
    "FrozenEncoder": spec.EncoderSchema,
    "Architecture": spec.ArchitectureSchema,
    "Loss": spec.LossSchema,
    "Step": pipeline_steps.StepSchema,
    "Layer": sequential_layers.LayerSchema,
}
RESTORES = "    restores: NotRequired[int]"
ENGINE_FIELDS = {
    "LinearArchitecture": ["    features: NotRequired[list[int] | None]"],
    "NumberColumn": [RESTORES],
    "BooleanColumn": [RESTORES],
    "CategoryColumn": [RESTORES],
    "DateColumn": ["    default: NotRequired[None]", RESTORES],
}
"""Fields that callers cannot send."""


def generate() -> str:
    members = {name: union_members(union) for name, union in UNIONS.items()}
    parts: list[type[BaseModel]] = [part for union in members.values() for part in union]
    parts += [
        spec.L2RegularizerSchema,
        pipeline_steps.OneHotSchema,
        pipeline_steps.LookupSchema,
        pipeline_steps.PiecewiseSchema,
    ]
    parts += [pipeline_steps.PartSchema, pipeline_steps.TransformSchema]
    classes = {name_of(part): part for part in parts}
    blocks = ["\n".join(class_of(name, CHANGED.get(name, part))) for name, part in classes.items()]
    aliases = [f"{name} = {' | '.join(map(name_of, union))}" for name, union in members.items()]
    fields = spec.SpecSchema.model_fields
    own = {name: type_of(field, field.default is None) for name, field in fields.items() if name != "regularizer"}
    predictor = [f"    {name}: {kind}" for name, kind in own.items()]
    blocks += ["\n".join([*aliases, "Regularizer = L2Regularizer"])]
    blocks += ["\n".join(["class PredictorSpec(TypedDict):", '    """What prediction needs."""\n', *predictor])]
    blocks += ['class Spec(PredictorSpec):\n    """What training needs."""\n\n    regularizer: Regularizer']
    return "\n\n\n".join([HEADER, *blocks]) + "\n"


def union_members(union: Any) -> list[type[BaseModel]]:
    while get_origin(union) is Annotated:
        union = get_args(union)[0]
    return list(get_args(union))


def name_of(part: type[BaseModel]) -> str:
    return part.__name__.removesuffix("Schema")


def class_of(name: str, part: type[BaseModel]) -> Iterator[str]:
    yield f"class {name}(TypedDict):"
    for field, given in part.model_fields.items():
        yield f"    {field}: {type_of(given)}"
    yield from ENGINE_FIELDS.get(name, [])


def type_of(field: FieldInfo, optional: bool | None = None) -> str:
    """The type of a field; the stored document lacks what is null, and the engine has defaults for all options."""
    kind = render(field.annotation)
    for name, union in UNIONS.items():
        kind = kind.replace(" | ".join(map(name_of, union_members(union))), name)
    if field.is_required() if optional is None else not optional:
        return kind
    return f"NotRequired[{kind.removesuffix(' | None')}]"


def render(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return render(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(render, arguments)))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(render, arguments))}]"
    if kind is types.NoneType:
        return "None"
    return name_of(kind)


if __name__ == "__main__":
    write_or_check(TARGET, generate())
