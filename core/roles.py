"""Roles of people who sign in at an identity provider. `core.keys.people` gives each role its scopes."""

from enum import StrEnum


class Role(StrEnum):
    """What a group of people may do."""

    VIEWER = "viewer"
    DATA_SCIENTIST = "data_scientist"
    PRIVACY_OFFICER = "privacy_officer"
    APPROVER = "approver"
    ADMIN = "admin"


def parse_roles(text: str) -> dict[str, Role]:
    """The role of each group.

    >>> parse_roles("ml-team=data_scientist, dpo=privacy_officer")
    {'ml-team': <Role.DATA_SCIENTIST: 'data_scientist'>, 'dpo': <Role.PRIVACY_OFFICER: 'privacy_officer'>}
    """
    roles: dict[str, Role] = {}
    for pair in text.split(","):
        group, equals, role = (part.strip() for part in pair.rpartition("="))
        if not pair.strip():
            continue
        if not equals or not group or role not in set(Role):
            raise ValueError(f"expected GROUP=ROLE, with a role of {', '.join(Role)}; not {pair.strip()!r}")
        if roles.setdefault(group, Role(role)) != role:
            raise ValueError(f"group {group!r} has two roles; give people two groups instead")
    return roles
