"""Where a server of ours listens and how it is reached, as settings say it."""

import re
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from rocstack.base.words import AtKey, PlainUrl, Value, word

Address = Annotated[str, word(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}", "HOST:PORT")]
# People copy it from where OpenAI's clients have it, with /v1 at its end.
ServerUrl = Annotated[PlainUrl, AfterValidator(lambda url: re.sub(r"(?<!/)(/v1)?/*$", "", url))]
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Of uvicorn. Where there is httptools it would parse by that, which keeps headers without end of whoever sends them.
PARSER: dict[str, Any] = {"http": "h11", "h11_max_incomplete_event_size": 64 << 10}


def no_token_in_the_clear(url: str) -> None:
    """
    Raises:
        AtKey: `url` is another host's, and people's tokens would go there without TLS.
    """
    if url.startswith("http://") and urlsplit(url).hostname not in LOOPBACK:
        raise AtKey(("url",), "people's tokens would go over the network in the clear: use https")


class ServerAddress(Value):
    """`listen` is HOST:PORT; with `certificate` and `key`, files in PEM, it speaks TLS."""

    listen: Address
    certificate: str | None = None
    key: str | None = None

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def listen_at(self, port: int) -> str:
        """`listen` with the port that the system gave, where it is 0."""
        return f"{self.listen.rpartition(':')[0]}:{port}"

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise AtKey(("certificate",), "certificate and key belong together")
        return self
