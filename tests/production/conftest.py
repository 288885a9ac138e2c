"""What tests of the production files share: Amend as the Dockerfile installs it."""

from __future__ import annotations

import pytest

from tests.production.image import Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("image"))
