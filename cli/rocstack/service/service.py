"""The service as one value: what the routes and the page call. No HTTP here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import httpx

from rocstack.base.errors import RocstackError
from rocstack.service import jobs as jobs_
from rocstack.service.cluster_view import ClusterView
from rocstack.service.config import ServiceSettings
from rocstack.service.database import Database
from rocstack.service.files import StoredFiles
from rocstack.service.handover import Handover
from rocstack.service.identity import Doorkeeper
from rocstack.service.issuer import IssuerClient
from rocstack.service.job_rows import JobRows
from rocstack.service.jobs import Jobs
from rocstack.service.models import Models
from rocstack.service.progress import Progress
from rocstack.service.reports import VerifyReports
from rocstack.service.serving import ModelServers
from rocstack.service.sign_in import SignIn
from rocstack.service.slurmrest import SlurmRest
from rocstack.service.storage import Storage
from rocstack.service.tracing import Tracing, tracing
from rocstack.service.tuning import Tuning
from rocstack.service.turns import Turns
from rocstack.service.uploads import Uploads

SWEEP_S = 600.0  # between two looks for uploads that took too long
log = logging.getLogger(__name__)


@dataclass
class Service:
    settings: ServiceSettings
    database: Database
    storage: Storage
    slurm: SlurmRest
    files: StoredFiles
    uploads: Uploads
    models: Models
    jobs: Jobs
    tuning: Tuning
    progress: Progress
    servers: ModelServers
    reports: VerifyReports
    door: Doorkeeper
    sign_in: SignIn | None  # None: the site has no issuer
    traces: Tracing
    stopping: asyncio.Event
    sizing: Turns = field(default_factory=Turns)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    def of(
        cls, settings: ServiceSettings, slurm: SlurmRest | None = None, overlay: Path | None = None,
        sign_in: SignIn | None = None,
    ) -> "Service":  # fmt: skip
        """
        Raises:
            BadInput: the database's URL is none, or the CA of the issuer can't be read.
        """
        password = None
        if settings.database_password:
            password = Path(settings.database_password).read_text(encoding="utf-8").strip()
        traces = tracing(settings.otlp, settings.cluster)
        database, storage = Database(settings.database, password, traces), Storage(Path(settings.data))
        slurm = slurm or SlurmRest(settings.slurmrestd, traces=traces)
        files = StoredFiles(database, storage, settings.limits)
        models = Models(database, storage, Path(settings.models))
        rows = JobRows(database)
        handover = Handover(rows, storage, slurm)
        jobs = Jobs(rows, storage, slurm, ClusterView(slurm), handover, models, settings.limits, overlay)
        stopping, progress = asyncio.Event(), Progress(storage)
        tuning = Tuning(settings, jobs, files, models, progress, stopping)
        servers = ModelServers(settings, jobs, models, storage)
        sign_in = sign_in or _sign_in(settings)
        door = Doorkeeper(slurm, settings.users, sign_in)
        reports = VerifyReports(Path(settings.reports))
        return cls(
            settings, database, storage, slurm, files, Uploads(files), models, jobs, tuning, progress, servers, reports,
            door, sign_in, traces, stopping,
        )  # fmt: skip

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._again(jobs_.RESEND_S, self.jobs.handover.resend)),
            asyncio.create_task(self._again(SWEEP_S, self.uploads.sweep)),
        ]

    async def stop(self) -> None:
        self.stopping.set()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.slurm.close()
        if self.sign_in:
            await self.sign_in.close()
        self.database.close()
        await anyio.to_thread.run_sync(self.traces.close)

    async def _again(self, every: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except RocstackError as error:  # the database is away: next time
                log.warning("%s: %s", getattr(work, "__name__", "task"), error.what)
            except Exception:
                log.exception("%s failed", getattr(work, "__name__", "task"))
            await asyncio.sleep(every)


def _sign_in(settings: ServiceSettings) -> SignIn | None:
    """
    Raises:
        BadInput: the CA of the issuer can't be read.
    """
    if settings.oidc is None:
        return None
    secret = settings.oidc_secret and Path(settings.oidc_secret).read_text(encoding="utf-8").strip()
    tokens = httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=settings.tokens), base_url="http://tokens", timeout=15
    )
    return SignIn(IssuerClient(settings.oidc, settings.oidc_ca), tokens, secret or None)
