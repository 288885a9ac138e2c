"""What the README shows must run."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text())
    assert targets
    for target in targets:
        assert (README.parent / target).exists(), target
