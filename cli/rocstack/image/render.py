"""Resolved stack + lock -> build context. Pure: the same input gives the same bytes."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstack import nic
from rocstack.base import __version__, paths
from rocstack.base.errors import BadInput
from rocstack.cluster.oidc import TOKENS_UID
from rocstack.cluster.service import SERVICE_UID
from rocstack.image import gateway_package, gfx_rules, node_package, own_package
from rocstack.image.context import EPOCH, BuildContext, ContextFile, tree
from rocstack.stack import base_reading, coherence, gpus
from rocstack.stack.base_reading import BaseStart
from rocstack.stack.blocks import Blocks, environment, guarded, own_files, sources, split
from rocstack.stack.component import FURTHER, ROLES, Role, TemplateFile, TemplateLibrary
from rocstack.stack.lock import Lock, key_sha256, source_sha256, unpinned
from rocstack.stack.resolve import ROOT, Part, Resolved
from rocstack.stack.sandbox import for_templates

# slurm's is Debian's own (base-passwd), the others are ours.
UIDS = {"munge": 42430, "slurm": 64030, "mysql": 42431, "docker-registry": 42432}
TOOLS = ("python3", "python3-pip", "python3-pyelftools", "binutils", "xz-utils")
TRACES = "rm -rf /var/log/apt /var/log/dpkg.log /var/lib/dpkg/*-old /var/cache/ldconfig/aux-cache"  # apt's, in an image
TRAINER, SERVICE, MAXTEXT = "trainer", "service", "maxtext"
BELOW_NIC = "worker-below"  # the stage below the NIC's layer
ONLY_STACKS = ("python3-pip", "binutils")  # wheels and stripped libraries, which a mere NIC's layer hasn't
# What a training run imports; tests/integration/test_trainer.py finds what is missing here.
WARM = (
    "torch.distributed.checkpoint.state_dict", "torch.optim", "numpy.ctypeslib", "safetensors.torch",
    "transformers.models.llama.modeling_llama", "pyarrow.compute", "pyarrow.parquet", "zstandard",
)  # fmt: skip


def render(
    resolved: Resolved,
    lock: Lock | None,
    components: TemplateLibrary,
    nics: TemplateLibrary,
    archives: Mapping[str, bytes] | None = None,
) -> BuildContext:
    """The whole context. `archives` are the sources of the NIC's providers, by their path in it.

    Raises:
        BadInput: a template or override is wrong (with its file and line).
    """
    shipped = {name: (paths.templates() / name).read_text() for name in ("Dockerfile.j2", "From.j2", "macros.j2")}
    env = environment({**shipped, **sources(components), **sources(nics)})
    vars = _variables(resolved, lock)
    vars["m"] = guarded(lambda: env.get_template("macros.j2").make_module(vars))
    blocks, nic_blocks = Blocks(env, components, vars), Blocks(env, nics, vars)
    parts = {part.name: part for part in resolved.parts}

    @for_templates
    def component_block(name: str, block: str, **extra: Any) -> str:
        return blocks.render(name, block, part=parts[name], **extra)

    @for_templates
    def has_block(name: str, block: str) -> bool:
        return bool(component_block(name, block))

    @for_templates
    def any_block(names: list[str], block: str) -> bool:
        return any(has_block(name, block) for name in names)

    @for_templates
    def nic_block(block: str, **extra: Any) -> str:
        return nic_blocks.render(resolved.nic.name, block, **extra)

    vars["blocks"] = {"render": component_block, "has": has_block, "any": any_block}
    vars["nic_block"] = nic_block
    template = "From.j2" if resolved.on_top else "Dockerfile.j2"
    dockerfile = guarded(lambda: env.get_template(template).render(vars))
    files: dict[str, ContextFile] = {}
    origins: dict[str, list[str]] = {}
    own = {**own_files(components), **own_files(nics)}

    def put(path: str, marked: str) -> None:
        text, lines = split(marked)
        files[path] = ContextFile(text.encode())
        places = (line.rpartition(":") for line in lines)
        origins[path] = [f"{own.get(name, f'templates/{name}')}:{line}" if name else "" for name, _, line in places]

    put("Dockerfile", dockerfile)
    libraries = (paths.images() / "check/libraries.sh").read_bytes()
    for role in resolved.stack.roles:
        for index, part in enumerate(p for p in resolved.parts if p.reaches(role)):
            version, smoke = (component_block(part.name, block, role=role) for block in ("version", "smoke"))
            put(f"smoke/{_smoke_stage(part, role)}/{index:02d}-{part.name}.sh", f"version() {{\n{version}}}\n{smoke}")
            if not resolved.on_top and role in ROLES:
                put(f"rootfs/{role}/usr/local/lib/rocstack/versions.d/{part.name}", version)
        if role == "worker":
            put(f"smoke/{role}/90-nic.sh", nic_block("smoke", role=role))
            if resolved.plugin:
                put(f"smoke/{role}/91-plugin.sh", guarded(lambda: vars["m"].plugin_smoke(resolved)))
        for stage in {role, BELOW_NIC} if role == "worker" and vars["below_nic"] else {role}:
            if not resolved.on_top:
                files[f"smoke/{stage}/00-libraries.sh"] = ContextFile(libraries)
        files[f"facts/{role}.json"] = ContextFile(_facts(resolved, lock, role))
    if not resolved.on_top:
        # The stack's own words come last, and so win: it may exclude kernel files that its targets would keep.
        pruned = gfx_rules.rules(resolved.stack.gfx, gpus.unused_databases(resolved.cards))
        rules = (*pruned, *(f"path-exclude={glob}" for glob in resolved.exclude))
        files["rules/dpkg.rules"] = ContextFile(("\n".join(rules) + "\n").encode())
    files |= tree(paths.images() / "build", "build")
    files |= tree(paths.images() / "check", "check")
    for name in ("libibverbs", "elf.py", "offload_bundle.py"):
        files[f"check/{name}"] = files[f"build/{name}"]
    files |= readers()
    files |= {path: ContextFile(data) for path, data in (archives or {}).items()}
    further = [role for role in FURTHER if role in resolved.stack.roles]
    if not further:
        files |= node_package.files(nics)
    # What the images of other roles have is no part of this context, nor of what it is known by.
    others = tuple(f"rootfs/{role}/" for role in ((*ROLES, "job", "common") if further else FURTHER))
    files |= {
        path: file for path, file in tree(paths.images() / "rootfs", "rootfs").items() if not path.startswith(others)
    }
    if SERVICE in parts:
        files |= own_package.files(_site_packages(resolved))
    if gateway_package.VLLM in parts:
        files |= gateway_package.files()
    if MAXTEXT in parts:
        # Apart: another program shall not install everything again.
        for folder, name in (("maxtext", "requirements.txt"), ("compile", "compile.py")):
            files[f"{folder}/{name}"] = ContextFile((paths.images() / MAXTEXT / name).read_bytes())
    if TRAINER in parts:
        files |= trainer_files(_site_packages(resolved))
    if vars["wheels"]:
        for number, text in enumerate(lock.requirements(resolved.stack.gfx) if lock else ("",)):
            files[f"wheels/{number}.txt"] = ContextFile(text.encode())
    return BuildContext(dict(sorted(files.items())), origins, _asked(resolved, components, nics, own))


def _asked(
    resolved: Resolved, components: TemplateLibrary, nics: TemplateLibrary, own: dict[str, str]
) -> dict[str, str]:
    """Package -> the line of the template's head that asks for it; a stack or an overlay may ask for more."""
    lists: list[tuple[TemplateFile, tuple[str, str]]] = [
        (components.files[part.name], ("methods", part.choice.method)) for part in resolved.parts
    ]
    lists += [(nics.files[resolved.nic.name], ("ways", provider.way)) for provider in resolved.providers]
    out: dict[str, str] = {}
    for file, start in lists:
        place = own.get(file.label, f"templates/{file.label}")
        for loc, text in file.head.texts(start).items():
            for name in resolved.stack.each(text):
                out.setdefault(name, f"{place}:{file.head.where(loc).line}")
    return out


def require_lock(resolved: Resolved, lock: Lock | None) -> None:
    """
    Raises:
        BadInput: wheels, archives or keys of the stack have no sha256 to be checked against.
    """
    missing = unpinned(resolved.stack, lock)
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise BadInput.of("unpinned", stack=resolved.stack.name, names=names)


def _variables(resolved: Resolved, lock: Lock | None) -> dict[str, Any]:
    @for_templates
    def own_parts(layer: tuple[str, ...], role: Role) -> list[str]:
        return [n for n in layer if resolved.part(n).reaches(role) and len(resolved.part(n).roles) == 1]

    @for_templates
    def prefix(name: str) -> str:
        found = resolved.reading and resolved.reading.components.get(name)
        if resolved.has(name) and resolved.part(name).choice.method == "base":
            default = "/opt/rocm" if name == "rocm" else "/usr"
            return (found.prefix if found else None) or default
        method = resolved.part(name).choice.method if resolved.has(name) else "apt"
        core = f"/opt/rocm/core-{resolved.stack.rocm_series}"
        return {"source": f"/opt/{name}", "amd": "/opt/rocm", "amdrocm": core}.get(method, "/usr")

    @for_templates
    def libdir(name: str) -> str:
        return "/usr/lib/x86_64-linux-gnu" if prefix(name) == "/usr" else f"{prefix(name)}/lib"

    @for_templates
    def dev_packages(names: tuple[str, ...]) -> tuple[str, ...]:
        """What it takes to build against these: the distribution's headers, or what a library built here links."""
        out: list[str] = []
        for name in names:
            if resolved.has(name):
                part = resolved.part(name)
                lists = part.packages
                built = part.choice.method == "source"
                out += [*lists.packages, *lists.worker_packages] if built else lists.builder_packages
        return tuple(dict.fromkeys(out))

    names = {"ROCSTACK_STACK": resolved.stack.name, "ROCSTACK_NIC": resolved.nic.name}
    return {
        "r": resolved,
        "roles": resolved.stack.roles,
        "daemon_roles": ROLES,
        "start": resolved.reading.start if resolved.reading else BaseStart(),
        "uids": UIDS,
        "service_uid": SERVICE_UID,
        "tokens_uid": TOKENS_UID,
        "env": for_templates(lambda role: {"ROCSTACK_ROLE": resolved.called(role), **names}),
        "own_parts": own_parts,
        "prefix": prefix,
        "libdir": libdir,
        "dev_packages": dev_packages,
        "rocm_path": prefix("rocm"),
        "rocm_smi": not (resolved.has("rocm") and resolved.part("rocm").choice.method == "amdrocm"),
        "rocm_dev_packages": resolved.part("rocm").packages.builder_packages if resolved.has("rocm") else (),
        "hip_packages": resolved.part("rocm").packages.compiler_packages if resolved.has("rocm") else (),
        "rocstack_version": __version__,
        "epoch": EPOCH,
        "site_packages": _site_packages(resolved),
        "key_sha256": for_templates(lambda repository: key_sha256(repository, lock)),
        "source_sha256": for_templates(lambda part, source=None: source_sha256(part.name, source or part.choice, lock)),
        "tools_packages": tuple(name for name in TOOLS if not (resolved.on_top and name in ONLY_STACKS)),
        "clean": TRACES if resolved.on_top else "/run/rocstack/build/apt-clean",
        "needs_source_packages": any(part.choice.source for part in resolved.parts),
        "needs_archives": any(part.choice.archives for part in resolved.parts),
        "below_nic": any(_smoke_stage(part, "worker") == BELOW_NIC for part in resolved.parts),
        "trainer_roles": resolved.part(TRAINER).roles if resolved.has(TRAINER) else (),
        "warm_modules": WARM,
        "wheels": bool(resolved.stack.wheels) or any(part.choice.method == "wheel" for part in resolved.parts),
    }


def _smoke_stage(part: Part, role: Role) -> str:
    """Where its smoke test is made: in the finished tree; below the NIC's layer; the trainer's there, too, with it."""
    if part.name == TRAINER:
        return f"{role}-trainer"
    return BELOW_NIC if part.below_nic and role == "worker" else role


def _site_packages(resolved: Resolved) -> str:
    if resolved.reading:
        return resolved.reading.site
    return f"/usr/local/lib/python{resolved.stack.python}/dist-packages"


def _facts(resolved: Resolved, lock: Lock | None, role: Role) -> bytes:
    """What the manifest can't read off the tree: identity, and which component asked for which package."""
    packages = {}
    for part in resolved.parts:
        if part.reaches(role):
            packages[part.name] = [*part.packages.packages, *part.packages.of_role(role)]
    built = {p.name: f"/opt/{p.name}/" for p in resolved.parts if p.choice.method == "source"}
    built |= {SERVICE: f"{_site_packages(resolved)}/rocstack/"} if resolved.has(SERVICE) else {}
    built |= {MAXTEXT: f"/opt/{MAXTEXT}/"} if resolved.has(MAXTEXT) else {}
    if role == "worker":
        packages["nic"] = [package for provider in resolved.providers for package in provider.packages]
        if resolved.plugin:
            built["plugin"] = f"{ROOT}/plugin/"
            packages["plugin"] = list(resolved.plugin.packages)
    wheels = (wheel.name for wheel in lock.wheels) if lock else ()
    facts = {
        "identity": {
            "rocstack": __version__,
            "stack": resolved.stack.name,
            "nic": resolved.nic.name,
            "way": resolved.ways,
            "role": resolved.called(role),
            "gfx": list(resolved.stack.gfx),
            "lock": lock.digest() if lock else None,
        },
        "read": {**base_reading.versions(resolved.reading)} if resolved.on_top and resolved.reading else {},
        "packages": packages,
        "prefixes": built,
        "site_packages": _site_packages(resolved),
        "wheels": {
            name: "jax" if name.startswith("jax") else "pytorch"
            for name in wheels
            if name.startswith(("torch", "triton", "jax", "rocm-sdk", "amd-torch"))
        },
    }
    if role == "worker":
        facts["nic"] = {
            "driver": resolved.nic.provider,
            "modules": list(resolved.nic.modules),
            "pci": list(resolved.nic.pci),
            "cards": resolved.nic.card_needs,
            "providers": [
                {
                    **each.model_dump(include={"place", "way", "version"}),
                    "package": next(iter(each.packages), None) if each.way == "package" else None,
                }
                for each in resolved.providers
            ],
            "plugin": resolved.plugin and resolved.plugin.model_dump(include={"name", "version", "library"}),
        }
    return (json.dumps(facts, indent=1) + "\n").encode()  # in layer order: a package belongs to the first


def readers() -> dict[str, ContextFile]:
    """What reads provider libraries in the build, as the package it is here."""
    own, modules = Path(nic.__file__).parent, ("__init__.py", "elf.py", "shared_library.py")
    files = {f"check/rocstack/nic/{name}": ContextFile((own / name).read_bytes()) for name in modules}
    return {"check/rocstack/__init__.py": ContextFile(b""), **files}


def trainer_files(site_packages: str) -> dict[str, ContextFile]:
    """The trainer as it lies in the image: its package, its metadata and its command."""
    source = paths.images() / "trainer"
    package = source / "rocstack_trainer"
    site = f"trainer{site_packages}"
    files = tree(package, f"{site}/rocstack_trainer")
    version = coherence.own_trainer()
    info = f"{site}/rocstack_trainer-{version}.dist-info"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.1", "Name: rocstack-trainer", f"Version: {version}"]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]  # the smoke test looks at them
    files[f"{info}/METADATA"] = ContextFile(("\n".join(lines) + "\n").encode())
    files[f"{info}/INSTALLER"] = ContextFile(b"rocstack\n")
    # -P: not the modules of the working folder, in which others may write.
    command = b'#!/bin/sh\nexec python3 -P -m rocstack_trainer "$@"\n'
    files["trainer/usr/local/bin/rocstack-train"] = ContextFile(command, 0o755)
    return files
