"""The controller as the sender of letters and reports, from the settings."""

from dataclasses import dataclass

from core.settings import Settings, split_lines


@dataclass(frozen=True)
class Sender:
    """The controller (GDPR Art. 4(7)) and whom a person can turn to."""

    address: list[str]
    """Name and address; empty if they are not configured."""
    contact: list[str]
    authority: list[str]
    privacy_notice: str

    @property
    def name(self) -> str:
        return self.address[0] if self.address else ""


def sender_of(settings: Settings) -> Sender:
    return Sender(
        split_lines(settings.controller),
        split_lines(settings.controller_contact),
        split_lines(settings.supervisory_authority),
        settings.privacy_notice_url,
    )
