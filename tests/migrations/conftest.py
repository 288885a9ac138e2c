"""Settings of empty databases, as tests of core have them."""

from tests.core.conftest import make_settings

__all__ = ["make_settings"]
