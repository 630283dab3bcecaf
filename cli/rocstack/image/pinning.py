"""Makes a lock from the world as it is now."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rocstack.base import paths
from rocstack.base.errors import CheckFailed
from rocstack.image import in_base
from rocstack.image.base_image import BaseImage
from rocstack.image.build_failure import of_index
from rocstack.settings.site import Site
from rocstack.stack.lock import (
    Lock,
    LockedBase,
    LockedKey,
    LockedPackage,
    LockedSource,
    LockedWheel,
    definition_digest,
    wheel_of,
)
from rocstack.stack.resolve import Resolved
from rocstack.stack.stack import Stack

_BUILD = "/run/rocstack/build"
ANSWER = 64 << 20  # bytes that apt may print
PLATFORMS = ("manylinux_2_39_x86_64", "manylinux_2_35_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64",
             "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")  # fmt: skip
# A wheel may need a source archive or a repository of git by its address. pip runs code of these to learn what they
# need in turn, whatever --only-binary says. So it starts no program here, but for the one that knows passwords.
_PIP = """
import runpy, sys

def refuse(event, words):
    if event == "subprocess.Popen" and not str(words[0]).endswith("/keyring"):
        raise OSError(f"a wheel needs what is not built yet, and {words[0]} is not run for that")

sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_MORE_PLACES = (
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_CONSTRAINT",
)  # that a wheel could come from
_HELPERS = (
    "site", "fetch", "fetch-source", "apt-update", "apt-install", "apt-suite", "apt-repository", "keep-packages",
)  # fmt: skip
# Prints what the base holds and what apt would install over it, and the sha256 of each from the index.
_RESOLVE = r"""
apt-get -qq -s install --no-install-recommends {packages} |
    sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p' >/tmp/inst
dpkg-query -W -f '${{Package}}=${{Version}}\n' >>/tmp/inst
cat /tmp/inst
echo ---
xargs -a /tmp/inst apt-cache show --no-all-versions | grep -E '^(Package|Version|SHA256):'
echo --- sources
"""


def packages(resolved: Resolved) -> tuple[str, ...]:
    """Every package any role asks for by name."""
    stack = resolved.stack
    layers = (resolved.layer_packages(layer, role) for layer in stack.layers for role in stack.roles)
    return tuple(dict.fromkeys(chain(resolved.shared_packages(), resolved.nic_packages(), *layers)))


def preparation(resolved: Resolved, site: Site) -> list[str]:
    """What a script inside the base image starts with. The build's own helpers set up mirror, repositories and
    certificates, so that apt sees the packages that a build would see. Pure."""
    lines = ["set -euo pipefail"]

    def file(path: str, text: str) -> None:
        end = "ROCSTACK_END_OF_FILE"
        lines.append(f"install -D -m 0755 /dev/stdin {path} <<'{end}'\n{text.rstrip()}\n{end}")

    def run(*words: str) -> None:
        lines.append(shlex.join(words) + " >&2")

    for name in _HELPERS:
        file(f"{_BUILD}/{name}", (paths.images() / "build" / name).read_text())
    file("/run/rocstack/site.env", site.env_file())
    if site.ca:
        file("/run/rocstack/ca.pem", Path(site.ca).read_text())
    for each in resolved.stack.base.suites:
        pinned = (" ".join(each.packages),) if each.packages else ()
        run(f"{_BUILD}/apt-suite", each.suite, " ".join(each.components), str(each.priority), *pinned)
    if not resolved.stack.base.check_valid_until:
        run("touch", "/etc/apt/no-valid-until")
    for repo in resolved.stack.repositories:
        run(f"{_BUILD}/apt-repository", repo.name, repo.uri, repo.suite, " ".join(repo.components), repo.key,
            repo.key_sha256 or "first-use", repo.origin, str(repo.priority))  # fmt: skip
    run(f"{_BUILD}/apt-update", "--source")
    return lines


def script(resolved: Resolved, site: Site) -> str:
    """What runs inside the base image for a lock: apt is asked, and sources are hashed. Pure."""
    lines = preparation(resolved, site)

    def run(*words: str) -> None:
        lines.append(shlex.join(words) + " >&2")

    lines.append(_RESOLVE.format(packages=shlex.join(packages(resolved))))
    archives = [each for part in resolved.parts for each in part.choice.archives]
    if any(each.url.startswith("https:") and not each.sha256 for each in archives):
        run(f"{_BUILD}/apt-install", "ca-certificates")
    for part in resolved.parts:
        choice = part.choice
        if choice.source:
            command = shlex.join([f"{_BUILD}/fetch-source", "--dsc", choice.source, choice.version])
            lines.append(f"sum=$({command} | cut -d ' ' -f 1)\necho {part.name} {choice.source} $sum")
        for archive in choice.archives:
            command = f"echo {archive.sha256}"
            if not archive.sha256:
                run(f"{_BUILD}/fetch", archive.url, "/tmp/archive")
                command = "sha256sum </tmp/archive"
            lines.append(f"sum=$({command} | cut -d ' ' -f 1)\necho {part.name} {archive.url} $sum")
    lines.append("echo --- keys")
    for repo in resolved.stack.repositories:
        lines.append(f"echo {repo.name} $(sha256sum </etc/apt/keyrings/rocstack-{repo.name}.asc | cut -d ' ' -f 1)")
    return "\n".join(lines) + "\n"


def ask_apt(script: str, base: BaseImage) -> str:
    """Runs a script inside the base image, and returns what it prints.

    Raises:
        CheckFailed: a package or source is gone, or a mirror does not answer.
    """
    with in_base.running(script, base) as ran:
        said = ran.out.read(ANSWER + 1)
        if len(said) > ANSWER:
            raise CheckFailed.of("packages-unresolved", error=f"it prints more than {ANSWER >> 20} MB")
    if ran.code:
        if unread := of_index(ran.lines):
            error, cause, next_step = unread
            raise CheckFailed.of("index-unread", error=error, cause=cause, next=next_step)
        raise CheckFailed.of("packages-unresolved", error=(*ran.errors, "no message")[0])
    return said.decode("utf-8", "replace")


@contextmanager
def reading() -> Iterator[None]:
    """A base image's answer, which may be anything.

    Raises:
        CheckFailed: it is none.
    """
    try:
        yield
    except (ValueError, LookupError, StopIteration) as error:
        why = f"the base image's answer is none: {type(error).__name__}: {error!s:.200}"
        raise CheckFailed.of("packages-unresolved", error=why) from None


def parse_sources(text: str, resolved: Resolved) -> tuple[LockedSource, ...]:
    """The script's last part as locked sources. Pure."""
    out = []
    for line in text.partition("--- sources\n")[2].partition("--- keys\n")[0].splitlines():
        name, place, sha256 = line.split()
        choice = resolved.part(name).choice
        url = None if place == choice.source else place
        out.append(LockedSource(component=name, version=choice.version, url=url, package=choice.source, sha256=sha256))
    return tuple(out)


def parse_keys(text: str, stack: Stack) -> tuple[LockedKey, ...]:
    """The sha256 of each repository's key. Pure."""
    sums = dict(line.split() for line in text.partition("--- keys\n")[2].splitlines())
    return tuple(LockedKey(repository=r.name, url=r.key, sha256=sums[r.name]) for r in stack.repositories)


def parse_packages(text: str) -> tuple[LockedPackage, ...]:
    """The script's output as locked packages. Pure."""
    chosen, _, shown = text.partition("--- sources\n")[0].partition("---\n")
    sums: dict[tuple[str, str], str] = {}
    for block in re.split(r"(?=^Package: )", shown, flags=re.MULTILINE):
        fields = dict(re.findall(r"^(\w+): (\S+)$", block, re.MULTILINE))
        if "SHA256" in fields:
            sums[(fields["Package"], fields["Version"])] = fields["SHA256"]
    out: dict[str, LockedPackage] = {}
    for line in chosen.split():
        name, _, version = line.partition("=")
        out.setdefault(name, LockedPackage(name=name, version=version, sha256=sums.get((name, version))))
    return tuple(sorted(out.values(), key=lambda package: package.name))


def resolve_wheels(stack: Stack, site: Site) -> tuple[LockedWheel, ...]:
    """Every wheel the stack needs as pip itself resolves it, dependencies included, less those that come as system
    packages.

    Raises:
        CheckFailed: pip can't resolve them (no such version, a conflict, no network).
    """
    return wheels_of(ask_pip(stack, site), stack)


def wheels_of(reports: Sequence[tuple[str | None, dict[str, Any]]], stack: Stack) -> tuple[LockedWheel, ...]:
    """pip's reports as the wheels of a lock. Pure."""
    found: dict[str, LockedWheel] = {}
    for index, report in reports:
        for wheel in parse_report(report, (), index):
            found.setdefault(wheel.name, wheel)
    there = (*stack.provided, *_elsewhere(stack))
    return tuple(wheel for name, wheel in sorted(found.items()) if name not in there)


def _elsewhere(stack: Stack) -> dict[str, tuple[str, list[str]]]:
    """What is there for pip though no wheel is: version, and what its metadata say of needs. PyTorch as a system
    package needs nothing more. Of `rocm` there is a source package alone, which pip takes for its own Python only; a
    component is made of it, and the wheels that it would name are these."""
    torch, sdk = stack.components.get("pytorch"), stack.components.get("rocm-sdk")
    out: dict[str, tuple[str, list[str]]] = {}
    if torch and torch.method != "wheel":
        out["torch"] = (torch.version, [])
    if sdk:
        extras = ("libraries", *(f"device-{gfx}" for gfx in stack.gfx))
        needs = [f"Requires-Dist: rocm-sdk-core=={sdk.version}"]
        for extra in extras:
            needs += [f"Provides-Extra: {extra}", f"Requires-Dist: rocm-sdk-{extra}=={sdk.version}; extra == '{extra}'"]
        out["rocm"] = (sdk.version, needs)
    return out


def ask_pip(
    stack: Stack, site: Site, wanted: Mapping[str, str] | None = None
) -> tuple[tuple[str | None, dict[str, Any]], ...]:
    """pip's installation report of each index. A component's own index is asked first and alone, for the component and
    all that it needs; the default index is asked for what remains, at the versions found so far. Asked both at once,
    pip takes the newest of a name, also a stranger's. `wanted` has other versions than the stack: wheel -> specifier.

    Raises:
        CheckFailed: pip can't resolve them (no such version, a conflict, no network).
    """
    sets: dict[str | None, list[str]] = {}
    for name, version, index in own_wheels(stack):
        extras = next((c.extras for n, c in stack.components.items() if c.extras and wheel_of(n) == name), ())
        asked = f"{name}[{','.join(each for extra in extras for each in stack.each(extra))}]" if extras else name
        sets.setdefault(index, []).append(asked + (wanted or {}).get(name, f"=={version}"))
    sets[None] = sets.pop(None, [])  # the last
    out: list[tuple[str | None, dict[str, Any]]] = []
    for index, requirements in sets.items():
        if requirements:
            known = wheels_of(out, stack)
            out.append((index, _resolved_by_pip(stack, site, index, requirements, known)))
    return tuple(out)


def own_wheels(stack: Stack) -> Iterator[tuple[str, str, str | None]]:
    """The wheels that the stack itself names: name, version, and the index that is not the default one."""
    for name, choice in stack.components.items():
        if choice.method == "wheel":
            yield wheel_of(name), choice.version, choice.index
    for name, version in stack.wheels.items():
        yield name, version, None


def pip_command(stack: Stack, *words: str) -> list[str]:
    """pip for the image's Python and platforms instead of this machine's."""
    command = [sys.executable, "-P", "-c", _PIP, "--disable-pip-version-check", *words]
    command += ["--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", stack.python, "--abi", f"cp{stack.python.replace('.', '')}"]
    return [*command, *(word for platform in PLATFORMS for word in ("--platform", platform))]


def run_pip(command: Sequence[str], index: str | None, site: Site) -> subprocess.CompletedProcess[str]:
    """Runs pip with the site's settings, and with that index alone."""
    more = ["--index-url", index] if index else []
    more += ["--cert", site.ca] if site.ca else []
    own = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "HOME", "LANG", "SSL_"))}
    own = {k: v for k, v in own.items() if k not in _MORE_PLACES}
    env = {"PATH": "/usr/bin:/bin", **own, **site.env, "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run([*command, *more], capture_output=True, text=True, env=env, check=False)


def _resolved_by_pip(
    stack: Stack, site: Site, index: str | None, requirements: Sequence[str], known: Sequence[LockedWheel]
) -> dict[str, Any]:
    """What one index has of them, with all that they need."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        constraints = Path(folder) / "constraints.txt"
        there = {name: (f"{v.partition('+')[0]}+system", needs) for name, (v, needs) in _elsewhere(stack).items()}
        # What another index gave is there, too: this one may not have it, as PyPI has no torch for ROCm.
        there |= {wheel.name: (wheel.version, []) for wheel in known}
        lines = [_stand_in(Path(folder), name, *each) for name, each in there.items()]
        constraints.write_text("".join(f"{line}\n" for line in lines))
        command = pip_command(stack, "install", "--quiet", "--dry-run", "--ignore-installed")
        command += ["--find-links", folder, "--target", folder, "--report", str(report)]
        ran = run_pip([*command, "--constraint", str(constraints), *requirements], index, site)
        if ran.returncode != 0:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
            raise CheckFailed.of("wheels-unresolved", error=errors[-1] if errors else "no message")
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def _stand_in(folder: Path, name: str, version: str, needs: Sequence[str]) -> str:
    """An empty wheel for what comes otherwise; the requirement that asks for that version."""
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        about = f"{stem}.dist-info"
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs]
        wheel.writestr(f"{about}/METADATA", "".join(f"{line}\n" for line in head))
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return f"{name}=={version}"


def parse_report(
    report: dict[str, Any], provided: tuple[str, ...], index: str | None = None
) -> tuple[LockedWheel, ...]:
    """pip's installation report (pip documentation, Installation Report) as locked wheels. Pure."""
    wheels = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in provided:
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            wheels.append(LockedWheel(name=name, version=item["metadata"]["version"], sha256=(sha256,), index=index))
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def make(resolved: Resolved, base: BaseImage, site: Site) -> Lock:
    """Resolves packages, wheels and sources. Needs the engine (for apt) and the network."""
    answer = ask_apt(script(resolved, site), base)
    with reading():
        packages, sources = parse_packages(answer), parse_sources(answer, resolved)
        keys = parse_keys(answer, resolved.stack)
    how: Literal["registry", "mmdebstrap"] = "registry" if base.how == "registry" else "mmdebstrap"
    return Lock(
        stack=resolved.stack.name,
        definition=definition_digest(resolved.stack),
        base=LockedBase(image=base.reference, how=how, digest=base.digest),
        packages=packages,
        wheels=resolve_wheels(resolved.stack, site),
        sources=sources,
        keys=keys,
    )
