"""Who may use the privacy pages, and their forms."""

from typing import Annotated

from fastapi import Depends, Request

from core.tables.keys import Scope
from service.erasures.endpoints import require_unrestricted
from service.pages.sign_in import Visitor, VisitorDep, check_form

MAX_FORM_BYTES = 2**20
"""Enough for a thousand requests in one form."""
MAX_FIELDS = 1000


def require_officer(visitor: VisitorDep) -> Visitor:
    """The visitor, if the key may handle data subject requests."""
    visitor.caller.require(Scope.ERASE)
    require_unrestricted(visitor.caller)
    return visitor


def require_approver(visitor: VisitorDep) -> Visitor:
    """The visitor, if the key may at least read and decide data subject requests."""
    visitor.caller.require(Scope.ERASE, Scope.APPROVE)
    require_unrestricted(visitor.caller)
    return visitor


OfficerDep = Annotated[Visitor, Depends(require_officer)]
ApproverDep = Annotated[Visitor, Depends(require_approver)]


async def read_officers_form(request: Request, visitor: OfficerDep) -> dict[str, str]:
    return await check_form(request, visitor, MAX_FORM_BYTES, MAX_FIELDS)


async def read_approvers_form(request: Request, visitor: ApproverDep) -> dict[str, str]:
    return await check_form(request, visitor, MAX_FORM_BYTES, MAX_FIELDS)


ApproversForm = Annotated[dict[str, str], Depends(read_approvers_form)]
OfficersForm = Annotated[dict[str, str], Depends(read_officers_form)]
