"""Adapters in a repository of an OCI registry: each is a tag, whose manifest names its two files by their digests, as
`oras push` writes it. What comes is bounded and is what its digest says; the files are fetched when they are used."""

import hashlib
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

import httpx

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import from_json
from rocstack.serve.adapter_check import CONFIG, MOST_CONFIG, PICKLED, WEIGHTS
from rocstack.serve.paced_transport import PacedTransport
from rocstack.serve.registry import MOST, NAME, OpenAdapter, Registered
from rocstack.serve.settings import RepositorySource

TIMEOUT = httpx.Timeout(30, connect=5)
LIST_S = 60.0  # for a list of all tags: folders are looked through after it
THREADS = 4
REST_S = 5.0  # that nobody asks one that didn't answer: requests for what is loaded would wait for it
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TITLE = "org.opencontainers.image.title"  # of a file
PAGE, LONGEST = 10_000, 16 << 20  # tags that are asked for at once; bytes of an answer
PAGES = MOST // 100
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_WORD = re.compile(r'\b(\w{1,32})="([^"]*)"')
# Addresses that a registry names may be none.
_FAILED = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


@dataclass(frozen=True)
class AdapterBlob:
    digest: str
    size: int


@dataclass(frozen=True)
class AdapterManifest:
    """`stamp` changes with any of its files."""

    stamp: str
    files: Mapping[str, AdapterBlob]


class AdapterRepository:
    """Thread-safe; its calls block."""

    def __init__(self, source: RepositorySource, most: int) -> None:
        """`most`: bytes of an adapter's weights.

        Raises:
            BadInput: its CA or login can't be read.
        """
        self.url, self._most = source.repository, most
        parts = urlsplit(source.repository)
        self._host, self._path = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
        try:
            trust = ssl.create_default_context(cafile=source.ca)
            login = Path(source.login).read_text(encoding="utf-8").strip() if source.login else ""
        except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
            raise BadInput.of("repository-file", why=getattr(error, "strerror", None) or error) from None
        user, _, password = login.partition(":")
        self._login = httpx.BasicAuth(user, password) if login else None
        way = PacedTransport(trust, https_alone=parts.scheme == "https")
        self._http = httpx.Client(base_url=self._host, transport=way, timeout=TIMEOUT, max_redirects=5, trust_env=False)
        self.threads = ThreadPoolExecutor(THREADS)  # who is slow holds up nobody but who asks for its own
        self._token, self._names, self._stamps = "", frozenset[str](), dict[str, str]()
        self._lock = threading.Lock()
        self._why, self._until = "", 0.0  # it didn't answer

    @property
    def names(self) -> frozenset[str]:
        """As of the last look."""
        return self._names

    def rescan(self) -> int:
        """How many there are. What the registry has that can be no adapter's name isn't seen.

        Raises:
            CheckFailed: it doesn't answer as it should; what was known stays.
        """
        names: set[str] = set()
        url, until = f"/v2/{self._path}/tags/list?n={PAGE}", time.monotonic() + LIST_S
        for _ in range(PAGES):
            if time.monotonic() > until:
                raise self._away(TimeoutError())
            answer, raw = self._get(url)
            if answer.status_code == 404:  # nothing was pushed yet
                break
            tags = _mapping(raw).get("tags")
            listed = tags if isinstance(tags, list) else []
            names |= {each for each in listed if isinstance(each, str) and NAME.fullmatch(each)}
            if not (following := answer.links.get("next", {}).get("url")) or len(names) > MOST:
                break
            try:
                url = urljoin(str(answer.url), following)
            except ValueError:
                url = ""
            if not url.startswith(f"{self._host}/v2/{self._path}/tags/list"):
                raise CheckFailed.of("repository-away", why="its list goes on elsewhere")
        self._names = frozenset(names)
        return len(names)

    def find(self, name: str) -> Registered | None:
        return Registered(name, None, self.url, (name,)) if name in self._names else None

    def stamp(self, adapter: Registered) -> str:
        """While the registry is away, that of the last look: what is loaded goes on.

        Raises:
            BadInput: it isn't there any more, or is no adapter. CheckFailed: it was never seen.
        """
        try:
            return self._manifest(adapter.name).stamp
        except CheckFailed:
            if known := self._stamps.get(adapter.name):
                return known
            raise

    @contextmanager
    def opened(self, adapter: Registered) -> Iterator[OpenAdapter]:
        """Its files, fetched for as long as this lasts.

        Raises:
            BadInput: it isn't there, is no adapter, or is too large. CheckFailed: the registry doesn't answer.
        """
        found = self._manifest(adapter.name)
        with tempfile.TemporaryFile() as config, tempfile.TemporaryFile() as weights:
            self._fetch(adapter.name, CONFIG, found.files[CONFIG], config, MOST_CONFIG)
            self._fetch(adapter.name, WEIGHTS, found.files[WEIGHTS], weights, self._most)
            yield OpenAdapter(config.fileno(), weights.fileno(), found.files[WEIGHTS].size, found.stamp)

    def _manifest(self, name: str) -> AdapterManifest:
        answer, raw = self._get(f"/v2/{self._path}/manifests/{name}", MANIFEST)
        if answer.status_code == 404:
            self._stamps.pop(name, None)
            raise BadInput.of("adapter-gone", name=name)
        files: dict[str, AdapterBlob] = {}
        titles: set[str] = set()
        for layer in _rows(_mapping(raw).get("layers")):
            notes, digest, size = layer.get("annotations"), layer.get("digest"), layer.get("size")
            title = notes.get(TITLE) if isinstance(notes, Mapping) else None
            if isinstance(title, str):
                titles.add(title)
                if isinstance(digest, str) and _DIGEST.fullmatch(digest) and type(size) is int and size >= 0:
                    files[title] = AdapterBlob(digest, size)
        for needed in (CONFIG, WEIGHTS):
            if needed not in files:
                if needed == WEIGHTS and titles & {*PICKLED}:
                    raise BadInput.of("adapter-pickled")
                raise BadInput.of("adapter-unread", file=needed, why="the manifest has no file of this title")
        stamp = hashlib.sha256(raw).hexdigest()
        self._stamps[name] = stamp
        return AdapterManifest(stamp, files)

    def _fetch(self, adapter: str, name: str, blob: AdapterBlob, to: IO[bytes], most: int) -> None:
        if blob.size > most:
            raise BadInput.of("adapter-unread", file=name, why=f"it has {blob.size >> 20:,} MiB of {most >> 20:,}")
        digest, done = hashlib.sha256(), 0
        try:
            url = f"/v2/{self._path}/blobs/{blob.digest}"
            # Elsewhere, too: by its digest it is known again. Nothing else is.
            with self._http.stream("GET", url, follow_redirects=True, **self._signed()) as answer:
                if answer.status_code != 200:
                    raise CheckFailed.of("repository-away", why=f"HTTP {answer.status_code} for {name} of {adapter}")
                for piece in answer.iter_raw():
                    digest.update(piece)
                    done += len(piece)
                    if done > blob.size:
                        break
                    to.write(piece)
            to.seek(0)
        except _FAILED as error:
            raise self._away(error) from None
        except OSError as error:
            raise CheckFailed.of("adapter-not-copied", folder=tempfile.gettempdir(), why=error.strerror) from None
        if done != blob.size or f"sha256:{digest.hexdigest()}" != blob.digest:
            raise BadInput.of("adapter-unread", file=name, why="what came is not what its digest says")

    def _get(self, url: str, accept: str = "application/json") -> tuple[httpx.Response, bytes]:
        """
        Raises:
            CheckFailed: neither 200 nor 404, no answer, or one without end.
        """
        if time.monotonic() < self._until:
            raise CheckFailed.of("repository-away", why=self._why)
        head = {"Accept": accept, "Accept-Encoding": "identity"}
        try:
            for last in (False, True):
                with self._http.stream("GET", url, **self._signed(head)) as answer:
                    if answer.status_code == 401 and not last and self._renew(answer.headers):
                        continue
                    if answer.status_code not in (200, 404):
                        raise CheckFailed.of("repository-away", why=f"HTTP {answer.status_code}")
                    return answer, _bounded(answer)
        except _FAILED as error:
            raise self._away(error) from None
        raise AssertionError("unreachable")

    def _away(self, error: Exception) -> CheckFailed:
        self._why, self._until = type(error).__name__, time.monotonic() + REST_S
        return CheckFailed.of("repository-away", why=self._why)

    def _signed(self, head: Mapping[str, str] | None = None) -> dict[str, Any]:
        if self._token:
            return {"headers": {**(head or {}), "Authorization": f"Bearer {self._token}"}, "auth": None}
        return {"headers": dict(head or {}), "auth": self._login}

    def _renew(self, headers: httpx.Headers) -> bool:
        """A token, from whom the registry names: by TLS, or the registry itself."""
        said = headers.get("www-authenticate", "")
        words = dict(_WORD.findall(said))
        realm = words.get("realm", "")
        if not said.lower().startswith("bearer ") or not realm.startswith(("https://", f"{self._host}/")):
            return False
        scope = words.get("scope") or f"repository:{self._path}:pull"
        asked = {"scope": scope} | ({"service": words["service"]} if "service" in words else {})
        with self._lock, self._http.stream("GET", realm, params=asked, auth=self._login) as answer:
            found = _mapping(_bounded(answer)) if answer.status_code == 200 else {}
        token = found.get("token") or found.get("access_token")
        self._token = token if isinstance(token, str) and re.fullmatch(r"[!-~]{1,65536}", token) else ""
        return bool(self._token)


def _bounded(answer: httpx.Response) -> bytes:
    """
    Raises:
        CheckFailed: it is without end.
    """
    raw = bytearray()
    for piece in answer.iter_raw():
        raw += piece
        if len(raw) > LONGEST:
            raise CheckFailed.of("repository-away", why=f"an answer of more than {LONGEST >> 20} MiB")
    return bytes(raw)


def _mapping(raw: bytes) -> dict[str, Any]:
    """
    Raises:
        CheckFailed: it is none of JSON.
    """
    try:
        found = from_json(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CheckFailed.of("repository-away", why="its answer is no JSON")
    return found


def _rows(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
