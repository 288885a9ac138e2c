"""K-priors: adapt a trained model to what a retrain would give, from the model and a small memory of its past data.

Based on Khan & Swaroop, *Knowledge-Adaptation Priors*, NeurIPS 2021. Tensors in, tensors out: no files, no settings, no
database.

    train(spec, data)                 the first version, from scratch
    adopt(spec, w, data, count)       the first version, with imported weights
    adapt(state, memory, tasks)       the next version, without the past data; networks also need `draw`
    certify(state, memory, data)      a bound of the distance to a retrain, by one pass; `refine` reduces it, and
                                      `refine_for_erasure` gives weights that do not depend on any erased example
    State.to_bytes, State.from_bytes  the state of a version as one safetensors file

The first version, the next one without one of the examples, and its distance to a retrain:

>>> import torch
>>> from core.kprior import Examples, RemoveData, adapt, train
>>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
>>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
>>> x = torch.linspace(-2, 2, 100)[:, None].double()
>>> rows = Examples(torch.arange(100), x, (x > torch.sin(9 * x)).double())
>>> first = train(spec, [rows])
>>> second = adapt(first.state, first.memory, [RemoveData([rows.take(rows.key == 50)])])
>>> second.cost.data_passes, second.certificate.relative < 0.01
(0, True)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.kprior.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # on first use: tables and specs need types of the engine, but not torch, which takes a second to load
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(importlib.import_module("core.kprior.public"), name)
