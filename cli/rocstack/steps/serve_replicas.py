"""`rocstack serve --replicas`: servers of a model as jobs of the cluster's service, which shares requests out."""

import getpass
from dataclasses import dataclass, fields
from pathlib import PurePath, PurePosixPath
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.text import listed
from rocstack.cluster import service as service_settings
from rocstack.jobs import remote, service_call
from rocstack.serve.engine_arguments import refuse_own
from rocstack.serve.settings import RANKS
from rocstack.steps.job_options import ServeOptions
from rocstack.steps.options import inventory_path, settings

TOKEN_S = 300  # that the token of this one call is good for
_THERE = ("inventory", "user", "time", "partition", "replicas", "node")  # where jobs are started
_BOTH = ("model", "max_rank", "resident")


@dataclass(frozen=True)
class StartedReplicas:
    """`servers` as the service lists them; `url` is where the model is asked for, as `model`."""

    model: str
    user: str
    url: str
    servers: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "user": self.user, "url": self.url, "servers": list(self.servers)}


def refuse_mixed(options: ServeOptions) -> None:
    """
    Raises:
        BadInput: an option of a server on this machine with --replicas, or one of jobs without.
    """
    given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    if options.replicas is None and not options.node:
        if wrong := [name for name in given if name in _THERE]:
            raise BadInput.of("no-combination", why=f"{_flags(wrong)} only with --replicas or --node, which start jobs")
    elif wrong := [name for name in given if name not in (*_THERE, *_BOTH)]:
        why = f"{_flags(wrong)} only without --replicas and --node: it concerns a server on this machine"
        raise BadInput.of("no-combination", why=why)


def start_replicas(options: ServeOptions, arguments: tuple[str, ...] = ()) -> StartedReplicas:
    """All or none. `arguments` are vLLM's own.

    Raises:
        BadInput: an option is wrong, or the cluster has no service.
        CheckFailed: the control node isn't reached; the service doesn't answer, or says no.
    """
    refuse_mixed(options)
    refuse_own(arguments)
    if options.node and options.replicas not in (None, len(options.node)):
        raise BadInput.of("no-combination", why="--replicas and --node both say how many: leave out --replicas")
    if options.max_rank is not None and options.max_rank not in RANKS:
        raise BadInput.of("serve-settings", key="--max-rank", why=f" is one of {', '.join(map(str, RANKS))}")
    chosen = settings()
    cluster = chosen.cluster
    if cluster.service is None:
        raise BadInput.of("no-service-for-replicas")
    _, models = service_settings.folders(cluster.service, cluster.parsed_mounts)
    model = _named(options.model, models)
    user = remote.owner(options.user, getpass.getuser(), cluster.users)
    control = remote.controller(inventory_path(chosen, options.inventory))
    asked = {
        "model": model, "replicas": options.replicas, "max_rank": options.max_rank, "resident": options.resident,
        "arguments": list(arguments), "time": options.time, "partition": options.partition,
        "nodes": list(options.node) or None,
    }  # fmt: skip
    body = {name: value for name, value in asked.items() if value is not None}
    found = service_call.post(control.ssh_host, control.token(user, TOKEN_S), "/v1/servers", body)
    url = f"https://{control.inventory.control.host}:{cluster.service.port}/v1"
    return StartedReplicas(model, user, url, tuple(each for each in found.get("data") or () if isinstance(each, dict)))


def _named(model: PurePath, models: str) -> str:
    """The service's name of a folder below its models, which may be given as the nodes see it.

    Raises:
        BadInput: it is another folder.
    """
    path = PurePosixPath(model)
    if not path.is_absolute():
        return str(path)
    if not path.is_relative_to(models) or path == PurePosixPath(models):
        raise BadInput.of("not-among-models", path=path, models=models)
    return str(path.relative_to(models))


def _flags(names: list[str]) -> str:
    return listed([f"--{name.replace('_', '-')}" for name in names])
