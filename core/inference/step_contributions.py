"""Contributions of columns to the outputs of a linear model on the steps of an imported pipeline.

The contribution of a value is slope * value + rest. From the features back to the columns, each step turns the
contributions of its outputs into those of its inputs. Affine steps keep slopes; a contribution to any other function of
an input is that of the input, and products are shared equally among their inputs. What a function of principal
components contributes is shared among the columns by the absolute values of their loadings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kprior.model.architectures import Linear
from ..kprior.model.input_encoders import StepsEncoder
from ..kprior.model.pipeline_features import (
    Chain,
    Fill,
    OneHotEncoding,
    Parts,
    Polynomials,
    Products,
    Project,
    Scale,
    StepModule,
)

Contributions = tuple[Tensor, Tensor]
"""Slopes and rests, each (n, values)."""


def pull_back(encoder: StepsEncoder, body: Linear, x: Tensor, weight: Tensor) -> Tensor:
    """Contributions of columns (n, columns + 1), the intercept last, for weights (n, D) of each row."""
    features = encoder(x)
    constant = torch.zeros(len(x), dtype=x.dtype)
    slope, rest = torch.zeros_like(features), torch.zeros_like(features)
    phi = body.features(features)
    for j, monomial in enumerate(body.monomials):
        own = sorted(set(monomial))
        if len(monomial) == 1:
            slope[:, own[0]] += weight[:, j]
        elif own:
            rest[:, own] += (weight[:, j] * phi[:, j] / len(own))[:, None]
        else:
            constant += weight[:, j]
    undefined = ~encoder.chain(x).isfinite()  # such features are 0
    slope, rest = invert(encoder.chain, x, (slope.masked_fill(undefined, 0.0), rest), constant)
    return torch.column_stack([product(slope, x) + rest, constant])


def invert(step: StepModule, x: Tensor, given: Contributions, constant: Tensor) -> Contributions:
    """From the contributions of a step's outputs to those of its inputs x. Constants are added to `constant`."""
    slope, rest = given
    if isinstance(step, Chain):
        values = [x]
        for each in step.steps[:-1]:
            values.append(each(values[-1]))
        for each, value in zip(reversed(step.steps), reversed(values[: len(step.steps)]), strict=True):
            assert isinstance(each, StepModule)
            given = invert(each, value, given, constant)
        return given
    if isinstance(step, Scale):
        return slope / step.scale, rest - slope * step.mean / step.scale
    if isinstance(step, Project):
        constant += slope @ step.offset
        size = step.matrix.abs()
        total = size.sum(1, keepdim=True)
        constant += rest @ (total[:, 0] == 0).to(rest)
        return slope @ step.matrix, rest @ (size / total.masked_fill(total == 0, 1.0))
    if isinstance(step, Parts):
        return invert_parts(step, x, given, constant)
    whole = product(slope, step(x)) + rest
    if isinstance(step, Fill):
        missing, n = x.isnan(), x.shape[1]
        found = torch.where(missing, whole[:, :n], rest[:, :n])
        return slope[:, :n].masked_fill(missing, 0.0), found.index_add(1, step.chosen, whole[:, n:])
    none = torch.zeros_like(x)
    if isinstance(step, Products):
        return invert_products(step, slope, rest, whole, constant)
    if isinstance(step, OneHotEncoding | Polynomials):
        return none, torch.stack([part.sum(1) for part in whole.split(step.widths, 1)], 1)
    return none, whole


def invert_parts(step: Parts, x: Tensor, given: Contributions, constant: Tensor) -> Contributions:
    slope, rest, start = torch.zeros_like(x), torch.zeros_like(x), 0
    for chosen, chain in zip(step.chosen, step.chains, strict=True):
        assert isinstance(chain, Chain)
        if chosen:
            end = start + chain.outputs
            part = given[0][:, start:end], given[1][:, start:end]
            found, index = invert(chain, x[:, chosen], part, constant), torch.tensor(chosen)
            slope, rest, start = slope.index_add(1, index, found[0]), rest.index_add(1, index, found[1]), end
    return slope, rest


def invert_products(step: Products, slope: Tensor, rest: Tensor, whole: Tensor, constant: Tensor) -> Contributions:
    """A product of one factor keeps its slope; others are shared equally among the inputs in them."""
    factors, n = step.factors, len(whole)
    used = factors < step.inputs
    single = used.sum(1) == 1
    times = (factors[:, :, None] == factors[:, None, :]).sum(2)
    share = used / times
    share = share / share.sum(1, keepdim=True).clamp(min=1)
    shared = torch.where(single, rest, whole)
    constant += shared[:, ~used.any(1)].sum(1)
    made = torch.zeros(2, n, step.inputs + 1, dtype=whole.dtype)  # the last place takes the padding, which has no share
    for column, part in zip(factors.T, share.T, strict=True):
        made[0].index_add_(1, column, slope * single * part)
        made[1].index_add_(1, column, shared * part)
    return made[0, :, :-1], made[1, :, :-1]


def product(slope: Tensor, value: Tensor) -> Tensor:
    """slope * value; undefined values without a slope contribute nothing."""
    return torch.where(slope == 0, 0.0, slope * value)
