"""`cluster.service` of rocstack.yml: the HTTP interface and its page on the control node. Off unless it is set."""

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rocstack.base.server_address import ServerUrl, no_token_in_the_clear
from rocstack.base.words import FolderPath, PlainUrl, Value
from rocstack.cluster.oidc import TOKENS, TOKENS_UID, ClusterOidc
from rocstack.cluster.operation import Some
from rocstack.container.mount import Mount

USER, SERVICE_UID = "service", 64033  # in the image; the group has the same number
REPORTS, REPORT_MIB = "/etc/rocstack/service/reports", 24  # on the control node: where `verify` puts a report, at most
Problem = tuple[tuple[str | int, ...], str]


class ClusterServiceLimits(Value):
    """Of each user."""

    file_mib: Some = 512  # of one file that is uploaded
    quota_mib: Some = 10240  # of all her files
    jobs: Some = 100  # that wait or run


class SiteServer(Value):
    """A gateway of the site's, for everybody: it is sent people's own tokens, so whoever runs the cluster runs it."""

    model: Annotated[str, Field(min_length=1, max_length=255)]  # base model that it serves
    url: ServerUrl  # of the gateway
    ca: FolderPath | None = None  # file with the CA of its certificate (PEM), in one of `mounts`; default: the image's

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        no_token_in_the_clear(self.url)
        return self


class ClusterService(Value):
    """Its port, and the shared folders that it works in."""

    port: Annotated[int, Field(ge=1024, le=65535)] = 8443  # on the control node; none below 1024, for it is not root
    data: FolderPath | Literal[""] = ""  # users' files and adapters; default: rocstack/ in the first of `mounts`
    models: FolderPath | Literal[""] = ""  # models to train and to serve; default: models/ there
    limits: ClusterServiceLimits = ClusterServiceLimits()  # of each user
    servers: tuple[SiteServer, ...] = ()  # gateways that everybody may ask
    oidc: ClusterOidc | None = None  # the site's issuer, where people sign in
    otlp: PlainUrl | None = None  # a collector that gets traces by OTLP over HTTP, such as http://collector:4318


def own_users(service: ClusterService | None) -> dict[str, int]:
    """Those of its containers, with their uids."""
    if service is None:
        return {}
    return {USER: SERVICE_UID} | ({TOKENS: TOKENS_UID} if service.oidc else {})


def report_name(level: int) -> str:
    """The file of the last report of a run to that level."""
    return f"level-{level}.json"


def switch(value: object) -> object:
    """`on` and `off` in place of a mapping."""
    if value in (True, "on"):
        return ClusterService()
    return None if value in (False, "off") else value


def folders(service: ClusterService, mounts: Sequence[Mount]) -> tuple[str, str]:
    """Data and models, as every container has them."""
    first = mounts[0].target if mounts else ""
    return service.data or f"{first}/rocstack", service.models or f"{first}/models"


def problems(service: ClusterService, mounts: Sequence[Mount], ports: Collection[int]) -> Iterator[Problem]:
    """`ports` are those that others have on the control node."""
    if service.port in ports:
        yield ("service", "port"), f"port {service.port} is Slurm's own, the registry's or slurmrestd's"
    if not mounts:
        yield ("service",), "it works in folders that all nodes share, and `mounts` names none"
        return
    data, models = folders(service, mounts)
    for key, path, given in (("data", data, service.data), ("models", models, service.models)):
        around = [mount for mount in mounts if f"{path}/".startswith(f"{mount.target}/")]
        at = ("service", key) if given else ("service",)
        if not around:
            yield at, f"{path} is in none of `mounts` ({', '.join(mount.target for mount in mounts)})"
        elif key == "data" and max(around, key=lambda mount: len(mount.target)).read_only:
            yield at, f"{path} is mounted read-only, and the service writes there"
    for number, server in enumerate(service.servers):
        around = [mount for mount in mounts if f"{server.ca}/".startswith(f"{mount.target}/")]
        if server.ca and not around:
            yield (
                ("service", "servers", number, "ca"),
                f"{server.ca} is in none of `mounts`",
            )
    if f"{models}/".startswith(f"{data}/"):
        yield ("service", "models"), f"{models} is in `data`, which is the users' own"
