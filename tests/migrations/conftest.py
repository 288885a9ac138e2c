"""Settings of empty databases, as in the tests of core."""

from tests.core.conftest import make_settings

__all__ = ["make_settings"]
