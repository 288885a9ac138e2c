"""Endpoints of the register: signed heads, proofs and public keys, and receipts with their verification."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import JSONResponse, Response

from core.erasure import receipts, verification
from core.erasure.receipts import Envelope
from core.errors import Invalid
from core.register import merkle, signed_tree
from core.register.published_keys import PublicKeys, public_keys
from core.register.signing import Head
from core.register.verification import check_older_head
from core.tables.erasures import Receipt
from core.tables.keys import Scope
from core.tables.register import Leaf
from service.context import ContextDep
from service.http.auth import Caller, Eraser, require_scope
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1", route_class=AuthenticatedRoute)

Anyone = Annotated[Caller, require_scope(*Scope)]
"""Heads, proofs and public keys contain nothing personal: every key may read them."""
MAX_SIZE = 2**62
Size = Annotated[int | None, Query(ge=0, le=MAX_SIZE)]


class ReceiptItemResponse(ResponseModel):
    """A receipt in a list."""

    number: int
    erasure: str
    """Id of the erasure."""
    leaf: int
    """Index of its leaf in the register."""
    sha256: str
    """Hash of the signed statement."""
    key_id: str
    """Id of the key that signed it."""
    completed_at: str


class ProofResponse(ResponseModel):
    """An inclusion proof (`leaf`, `size`, `leaf_hash`) or a consistency proof (`from`, `to`), as in RFC 6962."""

    leaf: int | None = None
    size: int | None = None
    leaf_hash: str | None = None
    from_: int | None = Field(None, alias="from")
    to: int | None = None
    path: list[str]
    """Hashes, in hexadecimal, in the order of RFC 6962."""


class FlawResponse(ResponseModel):
    """Something that contradicts the register."""

    problem: str
    leaf: int | None
    """Index of the leaf that it concerns."""
    receipt: int | None
    """Number of the receipt that it concerns."""


class VerificationResponse(ResponseModel):
    """Result of verifying the register, the receipts and the requests."""

    valid: bool
    receipts: int
    """Number of receipts."""
    leaves: int
    """Number of leaves of the register."""
    head: Head
    """Newest signed head. Keep a copy elsewhere: only an older head reveals that it was truncated or rebuilt."""
    flaws: list[FlawResponse]
    strays: list[str]
    """Names of files in the store that Amend did not write. They have no effect; move them away."""


@router.get("/register/head", tags=["Register"], response_model=Head, responses=problem_responses())
def show_head(caller: Anyone, context: ContextDep) -> Head:
    """Get the newest signed head of the register. Keep it: a later register must extend it."""
    with context.database.read() as session:
        return signed_tree.current_head(session)


@router.get("/register/key", tags=["Register"], response_model=PublicKeys, responses=problem_responses())
def show_public_key(caller: Anyone, context: ContextDep) -> PublicKeys:
    """Get the public key of the register, and the keys that it replaced."""
    with context.database.read() as session:
        return public_keys(session)


@router.get("/register/proof", tags=["Register"], response_model=ProofResponse, responses=problem_responses(404))
def show_proof(
    caller: Anyone,
    context: ContextDep,
    leaf: Annotated[int | None, Query(ge=0, le=MAX_SIZE, description="Leaf to prove, counted from 0.")] = None,
    size: Annotated[int | None, Query(ge=1, le=MAX_SIZE, description="Size that `leaf` is in. Default: all.")] = None,
    old: Annotated[int | None, Query(alias="from", ge=0, le=MAX_SIZE, description="Smaller size.")] = None,
    new: Annotated[int | None, Query(alias="to", ge=0, le=MAX_SIZE, description="Larger size. Default: all.")] = None,
) -> Response:
    """Prove that the register contains a leaf (`leaf`, `size`), or that it extends an earlier one (`from`, `to`)."""
    if (leaf is None) == (old is None) or (leaf is None and size is not None) or (old is None and new is not None):
        detail = "must be either `leaf`, with an optional `size`, or `from`, with an optional `to`"
        raise Invalid.at(("query", "leaf"), "query_invalid", detail)
    with context.database.read() as session:
        current = signed_tree.size_of(session)
        if leaf is not None:
            within = current if size is None else size
            path = signed_tree.prove_inclusion(session, leaf, within)
            value = merkle.hash_leaf(session.get_one(Leaf, leaf).commitment).hex()
            return JSONResponse({"leaf": leaf, "size": within, "leaf_hash": value, "path": path})
        assert old is not None
        until = current if new is None else new
        return JSONResponse({"from": old, "to": until, "path": signed_tree.prove_consistency(session, old, until)})


@router.get("/receipts", tags=["Erasure"], response_model=Page[ReceiptItemResponse], responses=problem_responses())
def list_receipts(
    caller: Eraser, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ReceiptItemResponse]:
    """List the receipts, newest first."""
    caller.require_all_models()
    with context.database.read() as session:
        rows = receipts.page_receipts(session, parse_cursor(after, MAX_SIZE), limit + 1)
        return page_of(rows, limit, describe_receipt, lambda row: row.number)


def describe_receipt(receipt: Receipt) -> ReceiptItemResponse:
    body = receipts.body_of(receipt)
    return ReceiptItemResponse(**{name: body[name] for name in ReceiptItemResponse.model_fields})


@router.get("/receipts/verify", tags=["Erasure"], response_model=VerificationResponse, responses=problem_responses())
def verify_receipts(
    caller: Eraser,
    context: ContextDep,
    size: Annotated[Size, Query(description="Size of an older head that you kept.")] = None,
    root: Annotated[
        str | None, Query(pattern="^[0-9a-f]{64}$", description="Root of that head, in hexadecimal.")
    ] = None,
) -> VerificationResponse:
    """Verify the register, its files in the store, all receipts, and the requests that it records.

    With `size` and `root` of an older head, also verify that the register extends it.
    """
    caller.require_all_models()
    if (size is None) != (root is None):
        raise Invalid.at(("query", "root"), "query_invalid", "requires both `size` and `root` of the older head")
    with context.database.read() as session:
        found = verification.verify(session, context.store)
        if size is not None and root is not None:
            found += check_older_head(session, size, root)
        head, count = signed_tree.current_head(session), receipts.count(session)
        strays = verification.find_strays(session, context.store)
    flaws = [FlawResponse.model_validate(flaw) for flaw in found]
    counts = {"receipts": count, "leaves": head["size"]}
    return VerificationResponse(valid=not flaws, **counts, head=head, flaws=flaws, strays=strays)


@router.get("/receipts/{number}", tags=["Erasure"], response_model=Envelope, responses=problem_responses(404))
def show_envelope(
    number: Annotated[int, Path(ge=1, le=MAX_SIZE, description="Number of the receipt.")],
    caller: Eraser,
    context: ContextDep,
) -> Envelope:
    """Get a receipt as a DSSE envelope with an in-toto statement, and the proof that the register contains it."""
    caller.require_all_models()
    with context.database.read() as session:
        return receipts.envelope_of(session, receipts.find_receipt(session, number))
