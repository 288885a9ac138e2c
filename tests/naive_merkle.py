"""Merkle trees by the recursive definitions of RFC 6962, section 2.1, without any attempt at speed."""

from __future__ import annotations

from hashlib import sha256


def largest_power_below(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def tree_hash(leaves: list[bytes]) -> bytes:
    """MTH(D[n])."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    k = largest_power_below(len(leaves))
    return sha256(b"\1" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


def audit_path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH(m, D[n])."""
    if len(leaves) == 1:
        return []
    k = largest_power_below(len(leaves))
    if m < k:
        return [*audit_path(m, leaves[:k]), tree_hash(leaves[k:])]
    return [*audit_path(m - k, leaves[k:]), tree_hash(leaves[:k])]


def consistency_proof(m: int, leaves: list[bytes]) -> list[bytes]:
    """PROOF(m, D[n])."""
    return [] if m == 0 else subproof(m, leaves, True)


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if whole else [tree_hash(leaves)]
    k = largest_power_below(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole), tree_hash(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), tree_hash(leaves[:k])]
