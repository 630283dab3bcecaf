"""HTTP to one registry: login, tokens, its certificate, and a tunnel where it is not reached by its own name.

`as_engine` reaches a registry by the rules of `docker push`, so what the engine pushes to, rocstack pushes to.
"""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from pydantic import BaseModel, ConfigDict, StringConstraints
from requests.adapters import HTTPAdapter
from requests.exceptions import ContentDecodingError, InvalidSchema, RequestException, SSLError
from requests.utils import parse_dict_header

from rocstack.base.errors import Missing
from rocstack.base.text import from_json
from rocstack.edge import engine
from rocstack.edge.http import HttpSession, PacedAdapter
from rocstack.registry.registry_errors import TRANSIENT, classify, registry_error, without_query

TIMEOUT = (10.0, 300.0)  # seconds to connect, and of silence: a registry is silent while it stores a large layer
CERTIFICATES = Path("/etc/docker/certs.d")
API_HOSTS = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
PIECE = 256 << 10  # bytes written at once: how finely progress is seen and Ctrl-C is heard
LONGEST = 16 << 20  # bytes of an answer; a manifest or a configuration has some KB


Shape = TypeVar("Shape", bound="RegistryAnswer")
Token = Annotated[str, StringConstraints(pattern=r"^[!-~]*$")]  # what a header holds


class TransientFailure(Exception):
    """A failure that may pass."""


class PushStopped(Exception):
    """The person, or a failure elsewhere, ended this."""


class RegistryAnswer(BaseModel):
    """Keys that a model doesn't name are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class TokenAnswer(RegistryAnswer):
    token: Token | None = None
    access_token: Token | None = None


class TagList(RegistryAnswer):
    tags: list[str] | None = None


@dataclass(frozen=True)
class RegistryLogin:
    """A user's password, or a token that the registry gives access tokens for (then `user` is empty)."""

    user: str
    password: str = field(repr=False)


def docker_login(host: str) -> RegistryLogin | None:
    """What `docker login HOST` left behind, or its helper knows.

    Raises:
        Missing: it can't be read.
    """
    from docker import auth
    from docker.errors import DockerException

    try:
        entry = auth.resolve_authconfig(auth.load_config(), host) or {}
    except DockerException as error:
        raise Missing.of("unreadable-login", host=host, cause=error) from None
    if token := entry.get("IdentityToken"):
        return RegistryLogin("", str(token))
    user, password = entry.get("username", entry.get("Username")), entry.get("password", entry.get("Password"))
    return RegistryLogin(str(user), str(password)) if user and password else None


def as_engine(engine_info: Mapping[str, Any], host: str) -> RegistryHttp:
    """A registry as an engine with this `docker info` pushes to it, with the login of `docker login`.

    Raises:
        Missing: as `docker_login`.
    """
    return RegistryHttp(host, docker_login(host), insecure=is_insecure(engine_info, host))


def as_own_engine(host: str) -> RegistryHttp:
    """As this machine's engine, or where there is none, as one without settings of its own: to read needs no engine.

    Raises:
        Missing: as `docker_login`.
    """
    try:
        info = engine.connect().info()
    except Missing:
        info = {}
    return as_engine(info, host)


def is_insecure(engine_info: Mapping[str, Any], host: str) -> bool:
    """Whether the engine would use this registry without a certificate it trusts: on loopback addresses, and where
    `insecure-registries` names the host or its network (docs.docker.com/reference/cli/dockerd).

    The engine looks a name up, too, and one address in such a network is enough for it. Not so here: whoever answers
    for DNS could then have the login."""
    config = engine_info.get("RegistryConfig") or {}
    index = (config.get("IndexConfigs") or {}).get(host)
    if index:
        return not index.get("Secure", True)
    name = str(urlsplit(f"//{host}").hostname)
    if _is_loopback(name):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(text) for text in config.get("InsecureRegistryCIDRs") or ())


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
            raise PushStopped
        size = PIECE if size < 0 else size
        piece = bytes(self._data[self._at : self._at + size])
        self._at += len(piece)
        self._on_bytes(len(piece))
        return piece


class _Adapter(PacedAdapter):
    """Connects to `to`, and lets the certificate be that of `name`."""

    def __init__(self, name: str, to: tuple[str, int] | None, trust: ssl.SSLContext | None) -> None:
        self.name, self.to, self.trust = name, to, trust
        self.direct = bool(to) or _is_loopback(name)  # no proxy stands between here and there
        super().__init__(pool_maxsize=8)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        if self.trust:
            options["ssl_context"] = self.trust
        if self.to and self.trust:
            options.update(server_hostname=self.name, assert_hostname=self.name)
        super().init_poolmanager(*args, **options, blocksize=PIECE)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        host, pool = super().build_connection_pool_key_attributes(request, verify, cert)
        if self.to:
            host = {**host, "host": self.to[0], "port": self.to[1]}
        return host, pool

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        if self.to:
            request.headers["Host"] = urlsplit(request.url).netloc
        if self.direct:
            options["proxies"] = {}
        request.headers["Accept-Encoding"] = "identity"
        answer = super().send(request, *args, **{**options, "stream": True})
        vars(answer).update(_content=_bounded(answer), _content_consumed=True)  # also of those that lead elsewhere
        return answer


class _HttpsAlone(HTTPAdapter):
    """For http: by it a registry could have requests sent to whatever listens on this machine and believes who reaches
    it."""

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        raise InvalidSchema(f"it leads to {without_query(request.url)}, which is not https")


def _bounded(answer: requests.Response) -> bytes:
    """All of an answer, as it came over the wire: a few KB that claim to be packed unpack to more than the memory."""
    data = bytearray()
    try:
        for piece in answer.raw.stream(PIECE, decode_content=False):
            data += piece
            if len(data) > LONGEST:
                answer.close()
                raise ContentDecodingError(f"its answer has more than {LONGEST >> 20} MB")
    except urllib3.exceptions.HTTPError as error:
        answer.close()
        raise requests.exceptions.ConnectionError(error) from None
    return bytes(data)


@dataclass
class RegistryHttp:
    """`host` is the registry's name as references have it. Its certificate is checked against the CA file `ca`, or
    as the engine does: against the system's authorities and those of certs.d. An `insecure` registry may speak http,
    or https with any certificate; `plain` is http. Any other is followed elsewhere by https alone."""

    host: str
    login: RegistryLogin | None = None
    ca: Path | None = None
    connect_to: tuple[str, int] | None = None
    plain: bool = False
    insecure: bool = False
    _session: requests.Session = field(default_factory=HttpSession, repr=False)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)  # scope -> Authorization

    def __post_init__(self) -> None:
        self._api_host = API_HOSTS.get(self.host, self.host)
        name = str(urlsplit(self.base).hostname)
        trust = _trust(self)
        self._session.mount("https://", _Adapter("", None, trust))  # where it asks for a token, or keeps its layers
        self._session.mount("http://", _Adapter("", None, None) if self.plain or self.insecure else _HttpsAlone())
        self._session.mount(f"https://{self._api_host}/", _Adapter(name, self.connect_to, trust))
        if self.plain or self.insecure:
            self._session.mount(f"http://{self._api_host}/", _Adapter(name, self.connect_to, None))
        self._verify: str | bool = str(self.ca) if self.ca else not self.insecure
        self._settled = not self.insecure or self.plain
        self._settling = threading.Lock()

    @property
    def base(self) -> str:
        return f"{'http' if self.plain else 'https'}://{self._api_host}/"

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
            TransientFailure: it may work a little later.
            CheckFailed, Missing: it won't. Answers in `good` are returned.
        """
        self._settle_scheme(repository)
        try:
            url = urljoin(self.base, address)
            ours = urlsplit(url).netloc == self._api_host
        except ValueError as error:
            raise self.error(f"it leads to {address!r:.200}, which is no address: {error}", repository) from None
        if ours and not self.plain:  # behind a proxy that ends TLS a registry may name itself by http
            url = urlsplit(url)._replace(scheme="https").geturl()
        scope = f"repository:{repository}:pull,push" if repository else ""
        for last in (False, True):
            extra = {**(headers or {})}
            if ours and scope in self._tokens:
                extra["Authorization"] = self._tokens[scope]
            try:
                answer = self._session.request(
                    method, url, data=data, headers=extra, params=params, verify=self._verify, timeout=TIMEOUT
                )
            except (RequestException, ValueError) as error:  # ValueError: a redirect to what is no address
                raise self._judged(str(error), repository) from None
            if answer.status_code == 401 and ours and not last:
                if isinstance(data, Body):
                    data.rewind()
                self._tokens[scope] = self._authorize(answer.headers.get("WWW-Authenticate", ""), scope)
                continue
            if answer.status_code in good:
                return answer
            words = " ".join(answer.content[:400].decode(errors="replace").split())
            raise self._judged(f"HTTP status: {answer.status_code} {answer.reason}: {words}", repository)
        raise AssertionError

    def _settle_scheme(self, repository: str) -> None:
        """An insecure registry is asked by https first, and by http where it speaks no TLS."""
        with self._settling:
            if self._settled:
                return
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            try:
                self._session.get(f"{self.base}v2/", verify=False, timeout=TIMEOUT)
            except SSLError:
                self.plain = True
            except RequestException as error:
                raise self._judged(str(error), repository) from None
            self._settled = True

    def _authorize(self, challenge: str, scope: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self.login and self.login.user:
            return str(requests.auth._basic_auth_str(self.login.user, self.login.password))
        asked = parse_dict_header(rest)  # type: ignore[no-untyped-call]
        realm = str(asked.get("realm", ""))
        own = self._is_own(realm)
        if kind.lower() != "bearer" or not (realm.startswith("https:") or (self.plain and own)):
            return ""
        if self.login and (self.plain or self.insecure) and not own:  # nobody proved who names it
            return ""
        params = {key: value for key, value in (("service", asked.get("service")), ("scope", scope)) if value}
        options: dict[str, Any] = {"verify": self._verify, "timeout": TIMEOUT}
        try:
            if self.login and not self.login.user:  # distribution.github.io/distribution/spec/auth/oauth
                grant = {"grant_type": "refresh_token", "refresh_token": self.login.password, "client_id": "rocstack"}
                # What is sent on would take the body along, and with it the login.
                answer = self._session.post(realm, data={**params, **grant}, allow_redirects=False, **options)
            else:
                basic = (self.login.user, self.login.password) if self.login else None
                answer = self._session.get(realm, params=params, auth=basic, **options)
        except (RequestException, ValueError) as error:
            raise self._judged(str(error), scope) from None
        tokens = self.said(answer, TokenAnswer, scope) if answer.ok else TokenAnswer()
        token = tokens.token or tokens.access_token
        return f"Bearer {token}" if token else ""

    def _is_own(self, address: str) -> bool:
        try:
            return urlsplit(address).hostname == urlsplit(self.base).hostname
        except ValueError:
            return False

    def said(self, answer: requests.Response, shape: type[Shape], reference: str) -> Shape:
        """What an answer says in JSON.

        Raises:
            CheckFailed, Missing: it says something else.
        """
        try:
            return shape.model_validate(from_json(answer.content))
        except ValueError as error:  # pydantic's own is one
            place = without_query(answer.url)
            raise self.error(f"it answers {place} by something else: {error}"[:300], reference) from None

    def _judged(self, message: str, reference: str) -> Exception:
        if classify(message) in TRANSIENT:
            return TransientFailure(without_query(message))
        return self.error(message, reference)

    def error(self, message: str, reference: str, attempts: int = 1) -> Exception:
        return registry_error(message, host=self.host, reference=f"{self.host}/{reference}", attempts=attempts)


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _trust(http: RegistryHttp) -> ssl.SSLContext:
    """The given authority alone; else the system's, and the host's own authorities and client certificates in certs.d
    (docs.docker.com/engine/security/certificates).

    Raises:
        Missing: what is in certs.d can't be read.
    """
    context = ssl.create_default_context(cafile=http.ca)
    if http.ca:
        return context
    if http.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    folder = CERTIFICATES / http.host
    try:
        for authority in folder.glob("*.crt"):
            context.load_verify_locations(authority)
        for certificate in folder.glob("*.cert"):
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    except OSError as error:  # ssl's own errors are OSErrors, too
        why = error.strerror or error
        raise Missing.of("unusable-certificates", host=http.host, folder=folder, why=why) from None
    return context
