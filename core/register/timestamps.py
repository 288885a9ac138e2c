"""Time stamps of an authority (RFC 3161): evidence of when a head existed, from somebody else.

The scheduler requests them for new heads. Nothing waits for them: an authority that is down delays only time stamps.
"""

import hashlib

import httpx
from rfc3161_client import HashAlgorithm, PKIStatus, TimestampRequestBuilder, decode_timestamp_response
from sqlalchemy import select

from core.database import Database, dialect_insert
from core.errors import Unavailable
from core.register import signed_tree
from core.register.records import canonical
from core.register.signing import Head
from core.tables.register import StampedHead

TIMEOUT_SECONDS = 10.0


def stamp_newest_head(database: Database, url: str) -> bool:
    """Have the newest head time-stamped, unless it is already; returns whether there is a new time stamp.

    Raises Unavailable if the authority does not respond, or responds with anything but a time stamp of this head.
    """
    with database.read() as session:
        head = signed_tree.newest_head(session)
        if head is None or session.scalar(select(StampedHead.size).where(StampedHead.size == head["size"])):
            return False
    response = request_timestamp(head, url)
    with database.write() as session:
        made = dialect_insert(session, StampedHead).values(size=head["size"], head=dict(head), response=response)
        session.execute(made.on_conflict_do_nothing())  # another scheduler may have been faster
    return True


def request_timestamp(head: Head, url: str) -> bytes:
    """The authority's response for the SHA-256 of a head's canonical JSON."""
    content = canonical(head).encode()
    request = TimestampRequestBuilder(data=content, hash_algorithm=HashAlgorithm.SHA256).build()
    headers = {"Content-Type": "application/timestamp-query"}
    try:
        answer = httpx.post(url, content=request.as_bytes(), headers=headers, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        decoded = decode_timestamp_response(answer.content)
        granted = decoded.status in (PKIStatus.GRANTED, PKIStatus.GRANTED_WITH_MODS)
        valid = granted and decoded.tst_info.message_imprint.message == hashlib.sha256(content).digest()
        valid = valid and decoded.tst_info.nonce == request.nonce
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable("tsa_unavailable", "The time-stamping authority returned an invalid response.") from error
    if not valid:
        raise Unavailable("tsa_unavailable", "The time-stamping authority did not stamp the head that it was sent.")
    return answer.content
