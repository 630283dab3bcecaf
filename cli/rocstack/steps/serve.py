"""What `rocstack serve` starts: the settings of a gateway, and where it runs."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from rocstack.base.errors import BadInput, Missing
from rocstack.serve.base_model import read_base
from rocstack.serve.engine_arguments import refuse_own
from rocstack.serve.registry import FolderRegistry
from rocstack.serve.settings import ServeSettings, refusal
from rocstack.steps.job_options import SERVE, RunOptions, ServeOptions
from rocstack.steps.options import settings as of_this_folder
from rocstack.steps.run import RunPlan, plan_run

STACK = "vllm-cpu"
INSIDE = "/tmp/rocstack-serve"  # of the container, whose /tmp is its own


@dataclass(frozen=True)
class ServePlan:
    """`run` is the container's line; without one the gateway runs on this machine as `command`."""

    settings: ServeSettings
    file: Path
    command: tuple[str, ...]
    run: RunPlan | None
    adapters: int

    def to_dict(self) -> dict[str, Any]:
        document = json.loads(self.settings.model_dump_json(exclude_defaults=True))
        line = self.run.to_dict() if self.run else {"args": list(self.command), "notes": []}
        return {"settings": document, "file": str(self.file), "adapters": self.adapters, **line}


def plan_serve(
    options: ServeOptions, arguments: tuple[str, ...] = (), *, terminal: bool = False, dry: bool = False
) -> ServePlan:
    """Checks everything that can be checked before the engine starts. `arguments` are vLLM's own.

    Raises:
        BadInput: an option is wrong, or the model or a folder isn't there.
        Missing: no engine, no image; with `here` no vLLM.
    """
    refuse_own(arguments)
    folder = Path(of_this_folder().out).absolute() / "serve"
    model = _folder(options.model)
    read_base(model)
    shared, users = ([_folder(each) for each in folders] for folders in (options.adapters, options.user_adapters))
    secrets = (options.tokens, options.certificate, options.key, options.people_ca)
    tokens, certificate, key, people_ca = (_file(each) for each in secrets)
    if options.repository_login and len({urlsplit(each).netloc for each in options.repository}) > 1:
        raise BadInput.of("no-combination", why="--repository-login goes to one registry: name repositories of one")
    login, registry_ca = _file(options.repository_login), _file(options.repository_ca)
    name = options.name or model.name
    document = {
        "model": str(model),
        "name": name,
        "also": list(options.also),
        "listen": options.listen,
        "tokens": tokens,
        "people": {"url": options.people, "ca": people_ca} if options.people else None,
        "certificate": certificate,
        "key": key,
        "sources": [
            *({"folder": str(each), "layout": "shared"} for each in shared),
            *({"folder": str(each), "layout": "users"} for each in users),
        ],
        "repositories": [{"repository": each, "login": login, "ca": registry_ca} for each in options.repository],
        "state": str(folder / name) if options.here else INSIDE,
        "max_rank": options.max_rank,
        "active": options.active,
        "resident": options.resident,
        "engine": {
            "arguments": list(arguments),
            "environment": {"VLLM_CPU_KVCACHE_SPACE": str(options.cache)} if options.cache else {},
        },
    }
    try:
        settings = ServeSettings.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise refusal(error.errors()[0]) from None
    file = folder / f"{name}.json"
    number = FolderRegistry(settings.sources).rescan()
    command = (sys.executable, "-P", "-m", "rocstack.serve", str(file))  # nothing of the working folder
    if options.here:
        if not dry:
            _refuse_without_vllm()
        return ServePlan(settings, file, command, None, number)
    files = (tokens, certificate, key, people_ca, login, registry_ca)
    mounts = [model, *shared, *users, *(Path(each) for each in files if each)]
    if not dry:
        _write(settings, file)
        mounts.append(file)
    run = RunOptions(
        image=options.image,
        stack=options.stack or STACK,
        nic=options.nic,
        gpus=options.gpus,
        mount=tuple(f"{each}:{each}:ro" for each in dict.fromkeys(mounts)),
        name=options.container,
    )
    line = plan_run(run, (SERVE, str(file)), terminal=terminal, dry=dry)
    return ServePlan(settings, file, command, line, number)


def write(plan: ServePlan) -> None:
    _write(plan.settings, plan.file)


def _write(settings: ServeSettings, file: Path) -> None:
    """
    Raises:
        BadInput: the current folder can't be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(settings.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        raise BadInput.of("serve-unwritable", file, why=error.strerror) from None


def _refuse_without_vllm() -> None:
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("fastapi") is None:
        raise Missing.of("no-serve-extra")
    if shutil.which("vllm") is None:
        raise Missing.of("no-vllm")


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise BadInput.of("no-such-folder", path=path)
    return path.resolve()


def _file(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise BadInput.of("no-such-file-to-serve", path=path)
    return str(path.resolve())
