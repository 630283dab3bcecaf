"""What all routes share: the person who asks, lists in pages, streams of events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import StreamingResponse

from rocstack.base.text import visible
from rocstack.service.failures import NotThere
from rocstack.service.identity import Caller, token_of
from rocstack.service.service import Service

BEAT_S = 15.0  # after which a silent stream says that it lives
SAFE = ("GET", "HEAD", "OPTIONS")


def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def caller_of(request: Request) -> Caller:
    """
    Raises:
        NotSignedIn, NotAllowed, Away
    """
    service, said = service_of(request), request.headers.get("authorization")
    token = token_of(said, request.cookies, same_site=same_site(request), tls=service.settings.tls)
    caller = await service.door.caller(token)
    request.state.user = caller.name  # who the pages are drawn for
    return caller


def same_site(request: Request) -> bool:
    """Whether a page of ours asks: only then a cookie counts for what changes something."""
    if request.method in SAFE:
        return True
    said = request.headers.get("sec-fetch-site")
    if said is not None:
        return said == "same-origin"
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}"


Serving = Annotated[Service, Depends(service_of)]
Person = Annotated[Caller, Depends(caller_of)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most")]
After = Annotated[str | None, Query(max_length=64, description="The id of the last one of the page before")]


def page(rows: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """OpenAI's list."""
    ids = [str(row.get("id", "")) for row in rows]
    return {
        "object": "list", "data": rows, "has_more": more,
        "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None,
    }  # fmt: skip


def cut(rows: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """A page of a list that is there as a whole.

    Raises:
        NotThere: `after` is none of them.
    """
    ids = [row["id"] for row in rows]
    if after and after not in ids:  # whoever walks through the pages would begin again, without end
        raise NotThere.of("no-such-after", after=visible(after[:64])).about("after")
    start = ids.index(after) + 1 if after else 0
    return page(rows[start : start + limit], start + limit < len(rows))


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def stream(rows: AsyncIterator[dict[str, Any]], service: Service, end: str = "[DONE]") -> StreamingResponse:
    """Server-sent events: each with its id, by which a reader that comes back says what it had. It ends when the rows
    do, or with the service."""

    async def lines() -> AsyncIterator[str]:
        coming = asyncio.ensure_future(anext(rows))
        try:
            while not service.stopping.is_set():
                done, _ = await asyncio.wait({coming}, timeout=BEAT_S)
                if not done:
                    yield ": still here\n\n"
                    continue
                try:
                    row = coming.result()
                except StopAsyncIteration:
                    yield f"data: {end}\n\n"
                    return
                key = f"id: {row['id']}\n" if "id" in row else ""
                yield f"{key}data: {json.dumps(row)}\n\n"  # JSON has no line breaks of its own
                coming = asyncio.ensure_future(anext(rows))
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await coming

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
