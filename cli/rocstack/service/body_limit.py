"""Limits for requests that are read whole: FastAPI reads a body before it asks who sends it, so a stranger's would
fill the control node's memory, or its disk."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

MOST = 1 << 20  # bytes
MOST_NAMES = 10_000  # of JSON: what is said of each that isn't known takes time in which nobody else is answered
_NAME = re.compile(rb'"\s*:')
# Who sends them is known first: files are written as they come, and requests to a model have a limit of their own.
_STREAMED = re.compile(r"/v1/files|/files|/v1/uploads/[^/]+/parts|/v1/(chat/completions|completions|responses)")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyLimit:
    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """
        Raises:
            HTTPException: 413, where the body is read.
        """
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # One range is enough to go on with a download; thousands cost seconds to tell apart.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range" or b"," not in value]
        if scope["method"] == "POST" and _STREAMED.fullmatch(scope["path"]):
            return await self._app(scope, receive, send)
        came = names = 0

        async def counted() -> Message:
            nonlocal came, names
            message = await receive()
            came += len(message.get("body", b""))
            if came > MOST:
                raise HTTPException(413, f"the request has more than {MOST >> 20} MB")
            names += len(_NAME.findall(message.get("body", b"")))
            if names > MOST_NAMES:
                raise HTTPException(413, f"the request has more than {MOST_NAMES:,} names")
            return message

        return await self._app(scope, counted, send)
