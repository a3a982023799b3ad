"""Eviction from the L2 cache of what a copy moves: a hint, which `T.copy` and its siblings take."""

from __future__ import annotations

from tvmtile.errors import InvalidOperand

_POLICIES = ("evict_normal", "evict_first", "evict_last")
"""The L2 cache's policies, by which it gives up lines first or last; their numbers are these."""


def eviction_of(operator: str, policy: object) -> str | None:
    """The policy that a user asks for; None for the normal one.

    Raises
    ------
    InvalidOperand
        If there is no such policy.
    """
    if isinstance(policy, int) and 0 <= policy < len(_POLICIES):
        policy = _POLICIES[policy]
    if policy is not None and policy not in _POLICIES:
        raise InvalidOperand(
            f"T.{operator}: eviction_policy={policy!r}", help=f"give one of {', '.join(_POLICIES)}"
        )
    return None if policy == _POLICIES[0] else policy
