"""The state machine of erasures: which state may follow which. Only `state_changes.py` and replays use it.

A part follows `TRANSITIONS`:

    held -> received -> adapting -> verifying -> purging -> completed

- A job that is repeated starts again at `adapting`, also with parts that failed.
- New examples of the person put a part back to `received`, even a completed one if another model is not done yet.
- A part fails if its job fails for good. Retrying it leads back to `received`.
- If its model is deleted, a part goes to `purging` at once.
- A request can be held, refused or withdrawn until its first part reaches `purging`.
- A request without parts is `unmatched`, unless it is held. Approving it completes it; examples that arrive later, or
  another identifier of the person that matches, make it `received`.
- A restriction of processing uses the same rows: its parts are `restricted` until it is `lifted`.

The erasure as a whole shows the state of the part that is furthest behind, or `failed` if any part failed.
"""

from collections.abc import Sequence

from core.tables.erasures import OPEN, UNDONE, Erasure, ErasureState, Part

UNMATCHED, HELD = ErasureState.UNMATCHED, ErasureState.HELD
RECEIVED, ADAPTING = ErasureState.RECEIVED, ErasureState.ADAPTING
VERIFYING, PURGING = ErasureState.VERIFYING, ErasureState.PURGING
COMPLETED, FAILED, REFUSED = ErasureState.COMPLETED, ErasureState.FAILED, ErasureState.REFUSED
WITHDRAWN, RESTRICTED, LIFTED = ErasureState.WITHDRAWN, ErasureState.RESTRICTED, ErasureState.LIFTED

TRANSITIONS: dict[ErasureState, frozenset[ErasureState]] = {
    UNMATCHED: frozenset(),
    HELD: frozenset({RECEIVED, REFUSED, WITHDRAWN}),
    RECEIVED: frozenset({HELD, ADAPTING, PURGING, FAILED, REFUSED, WITHDRAWN}),
    ADAPTING: frozenset({HELD, RECEIVED, VERIFYING, PURGING, FAILED, REFUSED, WITHDRAWN}),
    VERIFYING: frozenset({HELD, RECEIVED, ADAPTING, PURGING, FAILED, REFUSED, WITHDRAWN}),
    PURGING: frozenset({RECEIVED, ADAPTING, COMPLETED, FAILED}),
    FAILED: frozenset({HELD, RECEIVED, ADAPTING, PURGING, REFUSED, WITHDRAWN}),
    COMPLETED: frozenset({RECEIVED}),
    RESTRICTED: frozenset({LIFTED}),
    **{ended: frozenset[ErasureState]() for ended in UNDONE},
}
"""The states that a part may go to from each state."""
JOB_STEPS: dict[ErasureState, tuple[ErasureState, ...]] = {
    ADAPTING: (RECEIVED, VERIFYING, PURGING, FAILED),
    VERIFYING: (ADAPTING,),
    PURGING: (VERIFYING,),
}
"""For each step of a job: the states from which it takes parts along. Parts that were received since wait for the next
job."""
ERASURE_TRANSITIONS: dict[ErasureState, frozenset[ErasureState]] = {
    UNMATCHED: frozenset({HELD, RECEIVED, REFUSED, WITHDRAWN}),
    HELD: frozenset({RECEIVED, REFUSED, WITHDRAWN}),
    **{state: frozenset({HELD, *OPEN, REFUSED, WITHDRAWN} - {state}) for state in OPEN},
    # completed at once if nothing was found
    RECEIVED: frozenset({HELD, *OPEN, COMPLETED, REFUSED, WITHDRAWN} - {RECEIVED}),
    PURGING: frozenset({*OPEN, COMPLETED} - {PURGING}),
    COMPLETED: frozenset(),
    RESTRICTED: frozenset({LIFTED}),
    **{ended: frozenset[ErasureState]() for ended in UNDONE},
}
"""The states that an erasure may go to: as it shows the part furthest behind, it may skip states of single parts."""


def move(row: Erasure | Part, state: ErasureState) -> None:
    """Change the state of an erasure, or of its part in a model. Staying in a state is no transition."""
    allowed = TRANSITIONS if isinstance(row, Part) else ERASURE_TRANSITIONS
    if state is not row.state and state not in allowed[row.state]:
        raise ValueError(f"{type(row).__name__} that is {row.state} cannot become {state}.")
    row.state = state


def take_over(row: Erasure | Part, state: ErasureState) -> None:
    """Restore a state that was reached before a restore from a backup: the database lacks the steps that led to it."""
    row.state = state


def derive(parts: Sequence[ErasureState]) -> ErasureState:
    """The state of an erasure: failed if a part is, otherwise that of the part furthest behind."""
    return FAILED if FAILED in parts else min(parts, key=list(ErasureState).index, default=COMPLETED)
