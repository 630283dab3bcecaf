"""Which server answers for a model: a serving job of the person's own, or one of the site's. What a job announced is
its owner's, so her jobs are asked with the token that stands there and never with her own."""

import hashlib
import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import httpx
from pydantic import BaseModel, ConfigDict, Field

from rocstack.base.errors import RocstackError
from rocstack.base.text import from_json, visible
from rocstack.cluster.service import SiteServer
from rocstack.jobs.recipe import JobRequest
from rocstack.serve import announcement
from rocstack.serve.announcement import Announcement
from rocstack.serve.proxy import Names
from rocstack.serve.settings import RANKS
from rocstack.service.bounded_head import BoundedHead
from rocstack.service.config import ServiceSettings
from rocstack.service.failures import Away, NotThere, RequestRefused, ServiceError
from rocstack.service.identity import Caller
from rocstack.service.jobs import Jobs, Word, request_of, why
from rocstack.service.loopback_peer import TracedTransport
from rocstack.service.models import Models
from rocstack.service.outcome import LIVE
from rocstack.service.storage import Storage
from rocstack.service.tables import JobRow

SERVING, RECIPE = "serving", "serve"
THERE = ("sending", "queued", "running")  # statuses of a server that answers, or will
ANNOUNCED = "server.json"
CHAT = "/v1/chat/completions"
CONNECT_S, SILENT_S = 5.0, 600.0
MOST_ANSWER = 4 << 20  # bytes of an answer that is shown
REPLICAS = 16  # at most
LOOK_BACK = 20  # servers that are over
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,253}")


class ServerRequest(BaseModel):
    """A server of one's own for a base model and one's adapters of it. What is left out is Slurm's to say."""

    model_config = ConfigDict(extra="forbid")
    model: Annotated[str, Field(min_length=1, max_length=255)]
    replicas: Annotated[int, Field(ge=1, le=REPLICAS)] = 1
    nodes: Annotated[list[Word], Field(max_length=REPLICAS)] = []  # one on each of these, in place of `replicas`
    max_rank: int = 64
    resident: Annotated[int, Field(ge=1, le=100_000)] = 32
    arguments: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=100)] = []  # of `vllm serve`
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    time: Word | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None


@dataclass(frozen=True)
class ModelServer:
    """A gateway, how it is reached, and the token that it is asked with."""

    key: str
    url: str
    trust: ssl.SSLContext
    token: str
    strangers: frozenset[int] = frozenset()  # uids of jobs' users, who are sent nothing where no TLS tells who is there

    def client(self) -> httpx.AsyncClient:
        plain, trust = self.url.startswith("http://"), self.trust
        return httpx.AsyncClient(
            base_url=self.url,
            transport=TracedTransport(lambda uid: uid not in self.strangers, trust) if plain else BoundedHead(trust),
            # What comes is counted as it comes: a few packed bytes could be gigabytes.
            headers={"Authorization": f"Bearer {self.token}", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(SILENT_S, connect=CONNECT_S),
            trust_env=False,
        )


@dataclass(frozen=True)
class ModelServers:
    settings: ServiceSettings
    jobs: Jobs
    models: Models
    storage: Storage

    async def start(self, caller: Caller, body: ServerRequest) -> list[JobRow]:
        """A job for each replica; all or none.

        Raises:
            NotThere: no such base model. RequestRefused: it is an adapter, or an option is wrong.
            TooMany, SlurmRefused, Away: as `Jobs.create`.
        """
        base, folder, adapter = await self.models.find(caller, body.model)
        if adapter is not None:
            raise RequestRefused.of("serve-the-base", model=visible(body.model[:80]), base=base).about("model")
        if body.max_rank not in RANKS:
            raise RequestRefused.of("bad-max-rank", ranks=", ".join(map(str, RANKS))).about("max_rank")
        adapters = await anyio.to_thread.run_sync(self.storage.adapters, caller)
        options = body.model_dump(include={"gpus_per_node", "time", "partition", "account", "qos"})
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"serve-{folder.name}")[:60]

        places: list[str | None] = [*body.nodes] or [None] * body.replicas

        def plan(node: str | None, _: str, own: Path) -> JobRequest:
            values = {
                "model": str(folder), "adapters": str(adapters), "announce": f"{own}/{ANNOUNCED}",
                "listen": "0.0.0.0:0", "max_rank": str(body.max_rank), "resident": str(body.resident),
            }  # fmt: skip
            words = tuple(body.arguments)
            return request_of(options, name=name, node=node, folder=str(own), values=values, arguments=words)

        asked = body.model_dump(mode="json", exclude_none=True) | {"_base": base}
        made: list[JobRow] = []
        for number, node in enumerate(places):
            of_this = asked | {"_replica": number}
            try:
                made.append(await self.jobs.create(caller, SERVING, RECIPE, of_this, partial(plan, node)))
            except RocstackError as error:
                if len(places) == 1:
                    raise
                await self._withdraw(caller, made, of_this)
                raise (Away.of("slurm-away") if error.code == "job-kept" else error) from None
        return made

    async def _withdraw(self, caller: Caller, made: list[JobRow], asked: dict[str, Any]) -> None:
        """Ends what was made, and the one that Slurm's silence kept. What can't be ended now is seen in her list."""
        with suppress(RocstackError):
            kept, _ = await self.jobs.page(caller, SERVING, ("sending",), None, self.jobs.limits.jobs)
            made = made + [row for row in kept if row.asked == asked]
        for row in made:
            with suppress(RocstackError):
                await self.jobs.cancel(caller, row.id)

    async def live(self, caller: Caller) -> list[JobRow]:
        """Her serving jobs that wait or run."""
        rows, _ = await self.jobs.page(caller, SERVING, THERE, None, self.jobs.limits.jobs)
        return [row for row in rows if row.status in THERE]  # of those that were asked for, one may have ended by now

    async def last(self, caller: Caller, base: str) -> JobRow | None:
        """Her newest server of this base model, which is over."""
        rows, _ = await self.jobs.page(caller, SERVING, limit=LOOK_BACK)
        return next((row for row in rows if row.asked.get("_base") == base and row.status not in LIVE), None)

    async def to_dict(self, caller: Caller, row: JobRow) -> dict[str, Any]:
        """`status` is ready once it can be asked."""
        ready = row.status == "running" and await anyio.to_thread.run_sync(self._announced, caller, row) is not None
        status = "ready" if ready else "starting" if row.status == "running" else row.status
        return {
            "id": row.id, "object": "server", "model": row.asked.get("_base"), "status": status, "why": why(row),
            "created_at": row.created, "nodes": row.seen.get("where") or "", "slurm_job": row.slurm_id,
        }  # fmt: skip

    async def find(self, caller: Caller, model: str) -> tuple[Names, list[ModelServer]]:
        """The model's name there and here, and who can answer for it: first the one that has it loaded most probably.

        Raises:
            NotThere: she has no such model, or its only server's CA isn't there. RequestRefused: nobody serves it.
            Away: its server starts, or Slurm doesn't say where it is.
        """
        base, folder, adapter = await self.models.find(caller, model)
        names = Names(adapter.folder if adapter else folder.name, model)
        rows = [row for row in await self.live(caller) if row.asked.get("_base") == base]
        found: list[ModelServer] = []
        lost: list[ServiceError] = []  # one that can't be reached hides no other
        for row in rows:
            try:
                found += await self._of_job(caller, row)
            except Away as error:
                lost.append(error)
        for each in self.settings.servers:
            try:
                found += [_of_site(each, caller, self._strangers)] if each.model == base else []
            except NotThere as error:
                lost.append(error)
        if found:
            return names, by_nearness(names.engine, found)
        if lost and (not rows or isinstance(lost[0], Away)):
            raise lost[0]
        if rows:
            why_ = next((text for row in rows if (text := why(row))), "the model is being loaded")
            raise Away.of("server-starts", model=visible(model[:80]), job=rows[0].id, why=why_)
        raise RequestRefused.of("not-served", model=visible(model[:80]), base=base).about("model")

    async def ask(self, caller: Caller, model: str, messages: list[dict[str, str]], tokens: int) -> str:
        """What the model says next, as a whole.

        Raises:
            NotThere, Away: as `find`; no server answers. RequestRefused: nobody serves it, or its server says no.
        """
        names, servers = await self.find(caller, model)
        body = {"model": names.engine, "messages": messages, "max_tokens": tokens}
        for server in servers:
            try:
                async with server.client() as client, client.stream("POST", CHAT, json=body) as answer:
                    raw = bytearray()
                    async for piece in answer.aiter_raw():
                        raw += piece
                        if len(raw) > MOST_ANSWER:
                            raise RequestRefused.of("server-refuses", why="the answer is too long to show")
                if answer.status_code == 401 or answer.status_code >= 500:
                    continue
                found: Any = from_json(bytes(raw))
                if answer.status_code == 200:
                    return str(found["choices"][0]["message"]["content"] or "")
                raise RequestRefused.of("server-refuses", why=visible(str(found["error"]["message"])[:500]))
            except RequestRefused:
                raise
            except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError):
                continue
        raise Away.of("server-lost", model=model)

    async def _of_job(self, caller: Caller, row: JobRow) -> list[ModelServer]:
        """It, once it can be asked.

        Raises:
            Away: Slurm doesn't say where its node is.
        """
        said = await anyio.to_thread.run_sync(self._announced, caller, row) if row.status == "running" else None
        if said is None:
            return []
        where = str(row.seen.get("where") or "")
        nodes = {each.name: each.address for each in await self.jobs.cluster.nodes(caller)}
        address = nodes.get(where, "")
        if not _NODE.fullmatch(address) and ":" not in address:
            return []
        host = f"[{address}]" if ":" in address else address
        try:
            return [ModelServer(row.id, f"https://{host}:{said.port}", said.trust(), said.token)]
        except ValueError:
            return []

    @property
    def _strangers(self) -> frozenset[int]:
        return frozenset(person.uid for person in self.settings.users.values())

    def _announced(self, caller: Caller, row: JobRow) -> Announcement | None:
        try:
            with self.storage.opened(caller, "jobs", row.id, ANNOUNCED) as file:
                return announcement.parse(file.read(announcement.MOST))
        except (OSError, ValueError):
            return None


def by_nearness(name: str, servers: list[ModelServer]) -> list[ModelServer]:
    """The same order for the same name, whoever else is there: so an adapter is asked for where it is loaded, and when
    a server ends only its own adapters move (rendezvous hashing)."""
    return sorted(servers, key=lambda each: hashlib.sha256(f"{each.key}\0{name}".encode()).digest())


def _of_site(server: SiteServer, caller: Caller, strangers: frozenset[int]) -> ModelServer:
    """
    Raises:
        NotThere: its CA isn't there.
    """
    try:
        trust = _trusted(server.ca, os.stat(server.ca).st_mtime_ns if server.ca else 0)
    except (OSError, ssl.SSLError):
        raise NotThere.of("no-server-ca", file=server.ca) from None
    return ModelServer(server.url, server.url, trust, caller.token, strangers)


@lru_cache(maxsize=64)
def _trusted(ca: str | None, _changed: int) -> ssl.SSLContext:
    """Reading the machine's CAs takes longer than asking a small model."""
    return ssl.create_default_context(cafile=ca)
