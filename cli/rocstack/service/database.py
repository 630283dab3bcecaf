"""The way to the database: migrated when it first answers; while it is away, errors say so, and nobody waits for what
another one has found out."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from rocstack.base.errors import BadInput
from rocstack.service.circuit import SOON_S, Circuit
from rocstack.service.failures import Away
from rocstack.service.tracing import Tracing

Found = TypeVar("Found")
MIGRATIONS = Path(__file__).with_name("migrations")
AGAIN = 3  # times that a change is tried which another one crossed
ANSWER_S = 8  # for each thing that it is asked; one that takes connections all the same says nothing
PATIENCE = {"connect_timeout": 3, "read_timeout": 600}  # of a migration
PINGS = 4  # at once: they have threads of their own, as all others may wait for it
CROSSED = (1205, 1213)  # MariaDB: lock wait timeout, deadlock
log = logging.getLogger(__name__)


class DatabaseSilence(Away):
    """No answer came, or one that says nothing of others."""


class Database:
    """Work is a function of a session: it runs in a thread and in one transaction, so it may run again."""

    def __init__(self, url: str, password: str | None = None, traces: Tracing | None = None) -> None:
        """
        Raises:
            BadInput: the URL is none.
        """
        try:
            address = make_url(url)
            if password is not None:
                address = address.set(password=password)
            lite = address.get_backend_name() == "sqlite"
            silence: dict[str, Any] = {"connect_timeout": 3, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S}
            # Who waits for another one's change is told so before it looks like silence.
            silence["init_command"] = f"SET SESSION innodb_lock_wait_timeout = {ANSWER_S // 2}"
            engine = partial(
                create_engine,
                address,
                connect_args={"timeout": 10} if lite else silence,
                pool_pre_ping=True,
                pool_recycle=1800,
                hide_parameters=True,
                json_serializer=partial(json.dumps, ensure_ascii=False),  # a key is found as it is written
            )
            self.engine = engine(**({} if lite else {"pool_size": 8, "max_overflow": 8, "pool_timeout": 5}))
            self._small = engine(pool_size=PINGS)  # a way of its own: where all others are in use, it answers still
        except Exception as error:  # each driver fails in its own way
            raise BadInput.of("bad-database-url", why=type(error).__name__) from None
        if lite:
            event.listen(self.engine, "connect", _one_writer)
        self._migrated, self._lock = False, threading.Lock()
        self._traces, self._circuit = traces or Tracing(), Circuit()
        self._pings = anyio.CapacityLimiter(PINGS)

    async def run(self, work: Callable[[Session], Found]) -> Found:
        """
        Raises:
            Away: the database doesn't answer.
        """
        if not await self._circuit.passes(self._answered):
            raise Away.of("database-away")
        try:
            return await anyio.to_thread.run_sync(self.run_here, work)
        except DatabaseSilence:
            # What one person asked for may be too much, or nothing that can be kept, and the others' be answered.
            if not self._circuit.silent and not await self._answered():
                self._circuit.failed()
            raise

    def run_here(self, work: Callable[[Session], Found]) -> Found:
        """The same in this thread."""
        with self._traces.span("database", "CLIENT") as span:
            span.tell({"db.system.name": self.engine.name, "code.function.name": getattr(work, "__qualname__", "")})
            return self._run(work, self.engine)

    def _run(self, work: Callable[[Session], Found], engine: Engine) -> Found:
        for left in reversed(range(AGAIN)):
            try:
                self.migrate()
                with Session(engine, expire_on_commit=False) as session, session.begin():
                    return work(session)
            except (OperationalError, InterfaceError, PoolTimeout) as error:
                if not left or not _crossed(error):
                    log.warning("database: %s", getattr(error, "orig", None) or error)
                    crowd = _crossed(error) or isinstance(error, PoolTimeout)
                    raise (Away if crowd else DatabaseSilence).of("database-away") from None
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                raise DatabaseSilence.of("database-away") from None
        raise AssertionError("unreachable")

    def migrate(self) -> None:
        if self._migrated:
            return
        with self._lock:
            if self._migrated:
                return
            settings = Config()
            settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
            with self._patient() as connection:
                settings.attributes["connection"] = connection
                command.upgrade(settings, "head")
            self._migrated = True

    @contextmanager
    def _patient(self) -> Iterator[Connection]:
        """A change of a large table takes its time, and one that is cut off goes on in the server."""
        if self.engine.dialect.name == "sqlite":
            with self.engine.begin() as connection:
                yield connection
            return
        self.engine.connect().close()  # one that says nothing isn't waited for
        engine = create_engine(self.engine.url, connect_args=PATIENCE, hide_parameters=True)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()

    async def answers(self) -> bool:
        """Within seconds, whatever the others wait for."""
        if self._circuit.silent:
            return await self._circuit.passes(self._answered)
        return await self._answered()

    async def _answered(self) -> bool:
        with suppress(Away, TimeoutError):
            async with asyncio.timeout(SOON_S):
                ping = partial(self._run, _ping, self._small)
                await anyio.to_thread.run_sync(ping, abandon_on_cancel=True, limiter=self._pings)
                return True
        return False

    def close(self) -> None:
        self.engine.dispose()
        self._small.dispose()


def _ping(session: Session) -> None:
    session.execute(text("SELECT 1"))


def _crossed(error: Exception) -> bool:
    """Two changes at once, of which the database took back one."""
    args: tuple[object, ...] = getattr(getattr(error, "orig", None), "args", ())
    return bool(args) and (args[0] in CROSSED or "locked" in str(args[0]))


def _one_writer(connection: object, _record: ConnectionPoolEntry) -> None:
    """SQLite lets readers read while one writes."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()
