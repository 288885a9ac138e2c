"""What `core.kprior` offers explains itself: an example that runs for each, and every parameter."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

from core.kprior import public as kprior

FUNCTIONS = [name for name, member in vars(kprior).items() if inspect.isfunction(member)]
CLASSES = [name for name, member in vars(kprior).items() if inspect.isclass(member)]


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_every_public_function_has_an_example_that_runs(name: str) -> None:
    """That it runs is pytest's part: `--doctest-modules` in pyproject.toml."""
    assert doctest.DocTestParser().get_examples(inspect.getdoc(getattr(kprior, name)) or "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_a_function_is_explained(name: str) -> None:
    function = getattr(kprior, name)
    sections = dict(zip(*[iter(re.split(r"(?m)^(\w+)\n-+\n", inspect.getdoc(function) or "")[1:])] * 2, strict=True))
    explained = re.findall(r"(?m)^\S.*$", sections["Parameters"])
    assert re.split(r", ", ", ".join(explained)) == list(inspect.signature(function).parameters)
