"""The undocumented part of kombu that Amend overrides, so that workers survive the loss of the broker.

`Channel._connparams` and `Transport.Channel` may change in any release of kombu;
`tests/worker/test_kombu_internals.py` says what they have to do.
"""

from typing import Any

from kombu.transport import redis as transport
from redis.exceptions import ConnectionError as BrokerGone


class Channel(transport.Channel):
    """A channel that survives the loss of the broker while jobs run.

    Kombu's own channel then looks up the address of the lost connection and fails: the worker would take no more jobs
    and exit after the current ones.
    """

    def _connparams(self, asynchronous: bool = False) -> Any:
        if self.connection.client is None:
            raise BrokerGone  # expected by the callers that close a channel
        return super()._connparams(asynchronous)  # type: ignore[no-untyped-call]


def install() -> None:
    """Make kombu's Redis transport use this channel."""
    transport.Transport.Channel = Channel
