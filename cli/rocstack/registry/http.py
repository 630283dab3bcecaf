"""HTTP to one registry: login, tokens, its certificate, and a tunnel where it is not reached by its own name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from requests.utils import parse_dict_header

from rocstack.base.errors import Missing
from rocstack.registry.failures import TRANSIENT, classify, registry_error, without_query

TIMEOUT = (10.0, 300.0)  # seconds to connect, and of silence: a registry is silent while it stores a large layer
PIECE = 256 << 10  # bytes written at once: how finely progress is seen and Ctrl-C is heard


class Transient(Exception):
    """A failure that may pass."""


class Stopped(Exception):
    """The person, or a failure elsewhere, ended this."""


@dataclass(frozen=True)
class Login:
    user: str
    password: str = field(repr=False)


def docker_login(host: str) -> Login | None:
    """What `docker login HOST` left behind, or its helper knows.

    Raises:
        Missing: it can't be read.
    """
    from docker import auth
    from docker.errors import DockerException

    try:
        found = auth.resolve_authconfig(auth.load_config(), host) or {}
    except DockerException as error:
        raise Missing(
            f"the login for {host} can't be read",
            code="no-credentials",
            cause=str(error),
            next_step="see credHelpers and credsStore in docker's config.json, and run `docker login` again",
        ) from None
    user, password = found.get("username", found.get("Username")), found.get("password", found.get("Password"))
    return Login(str(user), str(password)) if user and password else None


class Body:
    """Bytes to send: counted as they leave, and cut off by `stop`."""

    def __init__(self, data: bytes, stop: threading.Event, on_bytes: Callable[[int], None]) -> None:
        self._data, self._at, self._stop, self._on_bytes = memoryview(data), 0, stop, on_bytes

    def __len__(self) -> int:
        return len(self._data)

    def rewind(self) -> None:
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if self._stop.is_set():
            raise Stopped
        size = PIECE if size < 0 else size
        piece = bytes(self._data[self._at : self._at + size])
        self._at += len(piece)
        self._on_bytes(len(piece))
        return piece


class _Adapter(HTTPAdapter):
    """Connects to `to`, and lets the certificate be that of `name`."""

    def __init__(self, name: str, to: tuple[str, int] | None, tls: bool) -> None:
        self.name, self.to, self.tls = name, to, tls
        super().__init__(pool_maxsize=8)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        if self.to and self.tls:
            options.update(server_hostname=self.name, assert_hostname=self.name)
        super().init_poolmanager(*args, **options, blocksize=PIECE)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        host, pool = super().build_connection_pool_key_attributes(request, verify, cert)
        if self.to:
            host = {**host, "host": self.to[0], "port": self.to[1]}
        return host, pool

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        if self.to:  # no proxy stands between here and a tunnel
            request.headers["Host"] = urlsplit(request.url).netloc
            options["proxies"] = {}
        return super().send(request, *args, **options)


@dataclass
class Wire:
    """`host` is the registry's name as references have it. Its certificate is checked against the CA file `ca`, or
    against docker's own for that host, or the system's. `plain` is http, for a registry on this machine."""

    host: str
    login: Login | None = None
    ca: Path | None = None
    connect_to: tuple[str, int] | None = None
    plain: bool = False
    _session: requests.Session = field(default_factory=requests.Session, repr=False)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)  # scope -> Authorization

    def __post_init__(self) -> None:
        self.base = f"{'http' if self.plain else 'https'}://{self.host}/"
        name = str(urlsplit(self.base).hostname)
        self._session.mount(self.base, _Adapter(name, self.connect_to, not self.plain))
        known = Path("/etc/docker/certs.d") / self.host / "ca.crt"
        self._verify: str | bool = str(self.ca) if self.ca else str(known) if known.is_file() else True

    def close(self) -> None:
        self._session.close()

    def request(
        self,
        method: str,
        address: str,
        *,
        good: Collection[int],
        repository: str = "",
        data: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """One request, with a login where the registry asks for one. `address` is a path or a Location.

        Raises:
            Transient: it may work a little later.
            CheckFailed, Missing: it won't. Answers in `good` are returned.
        """
        url = urljoin(self.base, address)
        ours = urlsplit(url).netloc == self.host
        scope = f"repository:{repository}:pull,push" if repository else ""
        for last in (False, True):
            extra = {**(headers or {})}
            if ours and scope in self._tokens:
                extra["Authorization"] = self._tokens[scope]
            try:
                answer = self._session.request(
                    method, url, data=data, headers=extra, params=params, verify=self._verify, timeout=TIMEOUT
                )
            except RequestException as error:
                raise self._judged(str(error), repository) from None
            if answer.status_code == 401 and ours and not last:
                if isinstance(data, Body):
                    data.rewind()
                self._tokens[scope] = self._authorize(answer.headers.get("WWW-Authenticate", ""), scope)
                continue
            if answer.status_code in good:
                return answer
            words = " ".join(answer.text[:400].split())
            raise self._judged(f"HTTP status: {answer.status_code} {answer.reason}: {words}", repository)
        raise AssertionError

    def _authorize(self, challenge: str, scope: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self.login:
            return str(requests.auth._basic_auth_str(self.login.user, self.login.password))
        asked = parse_dict_header(rest)  # type: ignore[no-untyped-call]
        realm = str(asked.get("realm", ""))
        if kind.lower() != "bearer" or not realm.startswith(("https:", "http:") if self.plain else "https:"):
            return ""
        params = {key: value for key, value in (("service", asked.get("service")), ("scope", scope)) if value}
        basic = (self.login.user, self.login.password) if self.login else None
        try:
            answer = self._session.get(realm, params=params, auth=basic, verify=self._verify, timeout=TIMEOUT)
            found = answer.json() if answer.ok else {}
        except RequestException as error:
            raise self._judged(str(error), scope) from None
        token = found.get("token") or found.get("access_token")
        return f"Bearer {token}" if token else ""

    def _judged(self, message: str, reference: str) -> Exception:
        if classify(message) in TRANSIENT:
            return Transient(without_query(message))
        return self.error(message, reference)

    def error(self, message: str, reference: str, attempts: int = 1) -> Exception:
        return registry_error(message, host=self.host, reference=f"{self.host}/{reference}", attempts=attempts)
