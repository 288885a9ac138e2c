"""What a privacy officer should do about an erasure that failed, in plain language."""

TECHNICAL = (
    "A technical problem stopped the erasure. Ask the people who operate the service to fix it, then select Retry."
)
COMPUTATION = (
    "The model could not be computed without this data. Ask the people who are responsible for the model to correct "
    "this, then select Retry."
)
ADVICE = {
    "encoder_required": "A fixed part of this model, its encoder, may have been made from this data. Ask the people "
    "who are responsible for the model to replace it, or to permit that the receipt says it was not replaced. Then "
    "select Retry.",
    "out_of_memory": "The computer that runs the erasure has too little memory for this model. Ask the people who "
    "operate the service for more memory, then select Retry.",
    "solver_failed": COMPUTATION,
    "work_refused": COMPUTATION,
    "nothing_to_train_on": COMPUTATION,
}
"""By the code of the error. All other errors are technical problems."""


def advise(code: str) -> str:
    """What to do about the failure of an erasure in one model, by the code of the error."""
    return ADVICE.get(code, TECHNICAL)
