"""The features of an imported pipeline: a fixed sequence of steps, computed from the raw columns of a row.

The constants of the steps are part of the spec. `core.models.pipeline_steps` declares and validates them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .spec_types import OneHot, Piecewise, Step, Transform

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "log1p": torch.log1p,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "abs": torch.abs,
}


MAX_OUTPUTS = 100_000
"""Numbers that all steps together may compute for a row; they are in memory for many rows at a time."""


class StepModule(nn.Module):
    """A step: (n, `inputs`) -> (n, `outputs`), both float64, NaN for missing values."""

    inputs: int
    outputs: int

    def keep(self, name: str, values: Any, dtype: torch.dtype = torch.float64) -> None:
        """Keep constants where they follow the module to its device, but are not part of a version's file."""
        self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)


class Fill(StepModule):
    """Replaces missing values, and appends flags."""

    fill: Tensor
    chosen: Tensor

    def __init__(self, values: Sequence[float | None], flags: Sequence[int]) -> None:
        super().__init__()
        self.inputs, self.outputs = len(values), len(values) + len(flags)
        check_indices(flags, self.inputs)
        self.keep("fill", [math.nan if value is None else value for value in values])
        self.keep("chosen", list(flags), torch.long)

    def forward(self, x: Tensor) -> Tensor:
        missing = x.isnan()
        return torch.cat([torch.where(missing, self.fill, x), missing[:, self.chosen].double()], 1)


class Scale(StepModule):
    """(x - mean) / scale."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.inputs = self.outputs = len(mean)
        if len(scale) != len(mean):
            raise ValueError("A scale step needs as many scales as means.")
        self.keep("mean", mean)
        self.keep("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


class Elementwise(StepModule):
    """One function of all inputs."""

    def __init__(self, width: int, apply: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inputs = self.outputs = width
        self.function = apply

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OneHotEncoding(StepModule):
    """Indicators of the values of categories."""

    def __init__(self, inputs: Sequence[OneHot]) -> None:
        super().__init__()
        self.inputs, self.outputs = len(inputs), sum(one["width"] for one in inputs)
        self.widths = [one["width"] for one in inputs]
        for i, one in enumerate(inputs):
            # a code is the index of a place; behind the values come unseen and missing
            places = [*one["places"], one.get("unseen", -1), one.get("missing", -1)]
            if max(places) >= one["width"]:
                raise ValueError("A place of a one-hot step exceeds its width.")
            self.keep(f"places_{i}", [place % (one["width"] + 1) for place in places], torch.long)

    def forward(self, x: Tensor) -> Tensor:
        columns, start = [], 0
        for i, width in enumerate(self.widths):
            places: Tensor = getattr(self, f"places_{i}")
            columns.append(look_up(x[:, i], torch.where(places < width, places + start, self.outputs)))
            start += width
        made = torch.zeros(len(x), self.outputs + 1, dtype=torch.float64, device=x.device)  # the last one is dropped
        return made.scatter_(1, torch.stack(columns, 1), 1.0)[:, :-1]


class Lookup(StepModule):
    """A number for each value of categories."""

    def __init__(self, tables: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.inputs = self.outputs = len(tables)
        for i, table in enumerate(tables):
            self.keep(f"table_{i}", table)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([look_up(x[:, i], getattr(self, f"table_{i}")) for i in range(self.inputs)], 1)


def look_up(code: Tensor, table: Tensor) -> Tensor:
    """The entries of codes in a table, whose last two entries are for unseen and missing values."""
    size = len(table) - 2
    known = (code >= 0) & (code < size)
    return table[torch.where(known, code, torch.where(code.isnan(), size + 1.0, float(size))).long()]


class Products(StepModule):
    """Products of inputs."""

    factors: Tensor

    def __init__(self, width: int, of: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.inputs, self.outputs = width, len(of)
        for factors in of:
            check_indices(factors, width)
        degree = max(map(len, of), default=0)
        self.keep("factors", [[*factors, *[width] * (degree - len(factors))] for factors in of], torch.long)

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        made = torch.ones(len(x), self.outputs, dtype=x.dtype, device=x.device)
        for column in self.factors.T:
            made = made * padded[:, column]
        return made


class Polynomials(StepModule):
    """Piecewise polynomials of each input."""

    def __init__(self, inputs: Sequence[Piecewise]) -> None:
        super().__init__()
        self.widths = [len(one["coefficients"]) for one in inputs]
        self.inputs, self.outputs = len(inputs), sum(self.widths)
        self.limits = [(one.get("low"), one.get("high")) for one in inputs]
        for i, one in enumerate(inputs):
            intervals = len(one["breaks"]) + 1
            degrees = {len(c) for output in one["coefficients"] for c in output}
            if len(one["origins"]) != intervals or any(len(output) != intervals for output in one["coefficients"]):
                raise ValueError("Each output of a piecewise step needs coefficients for every interval.")
            if len(degrees) != 1 or 0 in degrees:
                raise ValueError("All polynomials of an input need the same number of coefficients, at least one.")
            self.keep(f"breaks_{i}", one["breaks"])
            self.keep(f"origins_{i}", one["origins"])
            self.keep(f"coefficients_{i}", one["coefficients"])

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for i, (low, high) in enumerate(self.limits):
            value = x[:, i].contiguous()
            value = value if low is None and high is None else value.clamp(low, high)
            interval = torch.searchsorted(getattr(self, f"breaks_{i}"), value.nan_to_num(), right=True)
            t = (value - getattr(self, f"origins_{i}")[interval])[:, None]
            chosen = getattr(self, f"coefficients_{i}")[:, interval].movedim(0, 1)  # (n, outputs, degree + 1)
            made = chosen[..., -1]
            for k in range(chosen.shape[2] - 2, -1, -1):
                made = made * t + chosen[..., k]
            parts.append(torch.where(value.isnan()[:, None], 0.0, made))
        return torch.cat(parts, 1)


class Project(StepModule):
    """matrix x + offset."""

    matrix: Tensor
    offset: Tensor

    def __init__(self, matrix: Sequence[Sequence[float]], offset: Sequence[float]) -> None:
        super().__init__()
        self.inputs, self.outputs = len(matrix[0]), len(matrix)
        if len(offset) != self.outputs or any(len(row) != self.inputs for row in matrix):
            raise ValueError("The matrix and the offset of a project step do not fit together.")
        self.keep("matrix", matrix)
        self.keep("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.T + self.offset


class Parts(StepModule):
    """Steps for some of the inputs, concatenated."""

    def __init__(self, width: int, parts: Sequence[tuple[Sequence[int], Sequence[Step]]]) -> None:
        super().__init__()
        self.inputs = width
        for indices, _ in parts:
            check_indices(indices, width)
        self.chosen = [list(indices) for indices, _ in parts]
        self.chains = nn.ModuleList([chain_of(steps, len(indices)) for indices, steps in parts])
        made = [cast(Chain, chain).outputs for chain in self.chains]
        if any(count and not indices for count, indices in zip(made, self.chosen, strict=True)):
            raise ValueError("A part without inputs cannot have outputs.")
        self.outputs = sum(made)

    def forward(self, x: Tensor) -> Tensor:
        made = [chain(x[:, chosen]) for chosen, chain in zip(self.chosen, self.chains, strict=True) if chosen]
        return torch.cat([x[:, :0], *made], 1)


class Chain(StepModule):
    """Steps, one after the other."""

    def __init__(self, steps: list[StepModule], width: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.inputs, self.outputs = width, steps[-1].outputs if steps else width

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


def chain_of(steps: Sequence[Step], width: int) -> Chain:
    """The module of steps whose first input has `width` numbers; raises ValueError if a step does not fit."""
    made: list[StepModule] = []
    for step in steps:
        module = module_of(step, width)
        if module.inputs != width:
            raise ValueError(f"A step of kind {step['kind']!r} expects {module.inputs} inputs, but gets {width}.")
        made.append(module)
        width = module.outputs
    return Chain(made, made[0].inputs if made else width)


def module_of(step: Step, width: int) -> StepModule:
    if step["kind"] == "fill":
        return Fill(step["values"], step.get("flags", []))
    if step["kind"] == "scale":
        return Scale(step["mean"], step["scale"])
    if step["kind"] == "clip":
        low, high = step["low"], step["high"]
        return Elementwise(width, lambda x: x.clamp(low, high))
    if step["kind"] == "one_hot":
        return OneHotEncoding(step["inputs"])
    if step["kind"] == "lookup":
        missing = [math.nan if one.get("missing") is None else one["missing"] for one in step["inputs"]]
        return Lookup([[*one["values"], one["unseen"], gap] for one, gap in zip(step["inputs"], missing, strict=True)])
    if step["kind"] == "function":
        return Elementwise(width, FUNCTIONS[step["name"]])
    if step["kind"] == "products":
        return Products(width, step["of"])
    if step["kind"] == "piecewise":
        return Polynomials(step["inputs"])
    if step["kind"] == "project":
        return Project(step["matrix"], step["offset"])
    if step["kind"] == "normalize":
        order = {"l1": 1.0, "l2": 2.0, "max": math.inf}[step.get("norm", "l2")]

        def normalize(x: Tensor) -> Tensor:
            norm = torch.linalg.vector_norm(x, order, 1, keepdim=True)
            return x / torch.where(norm == 0, 1.0, norm)

        return Elementwise(width, normalize)
    return Parts(width, [(part["inputs"], part.get("steps", [])) for part in step["parts"]])


def check_indices(indices: Sequence[int], width: int) -> None:
    if indices and not (min(indices) >= 0 and max(indices) < width):
        raise ValueError(f"A step refers to input {max(indices)}, but there are {width} inputs, counted from 0.")


def count_outputs(module: nn.Module) -> int:
    """Numbers that a step computes for a row, without those of the steps inside it."""
    if isinstance(module, Chain):
        return module.inputs  # a copy of them
    if isinstance(module, Polynomials):
        return sum(
            len(values) * values.shape[2] for name, values in module.named_buffers() if name.startswith("coefficients")
        )
    return module.outputs if isinstance(module, StepModule) else 0


def transform_of(given: Transform, width: int) -> Chain:
    """The steps of an input with `width` columns.

    Raises
    ------
    ValueError
        If the steps do not fit together, compute too many numbers, or give another number of features than of names.

    Examples
    --------
    >>> import torch
    >>> given = {"steps": [{"kind": "products", "of": [[0], [0, 1]]}], "features": ["a", "a b"]}
    >>> transform_of(given, 2)(torch.tensor([[2.0, 3.0]]).double())
    tensor([[2., 6.]], dtype=torch.float64)
    """
    chain = chain_of(given["steps"], width)
    if sum(map(count_outputs, chain.modules())) > MAX_OUTPUTS:
        raise ValueError(f"The steps compute more than {MAX_OUTPUTS} numbers for a row.")
    if chain.outputs != len(given["features"]):
        raise ValueError(f"The steps give {chain.outputs} features, but {len(given['features'])} names.")
    return chain
