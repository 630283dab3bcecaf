"""Makes a lock from the world as it is now."""

import re
import shlex
import subprocess
from pathlib import Path

from rocstack.base import paths
from rocstack.base.errors import CheckFailed
from rocstack.image.base_image import BaseImage
from rocstack.settings.site import Site
from rocstack.stack.component import ROLES
from rocstack.stack.lock import Lock, LockedBase, LockedPackage, LockedSource, definition_digest
from rocstack.stack.resolve import Resolved

_BUILD = "/run/rocstack/build"
_HELPERS = ("site", "fetch", "fetch-source", "apt-update", "apt-install", "apt-repository")
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
    names = list(resolved.shared_packages()) + list(resolved.nic_packages())
    for layer in resolved.stack.layers:
        for role in ROLES:
            names += resolved.layer_packages(layer, role)
    return tuple(dict.fromkeys(names))


def script(resolved: Resolved, site: Site) -> str:
    """What runs inside the base image. The build's own helpers set up mirror, repositories and certificates, so
    that a lock sees the packages a build would see; then apt is asked, and sources are hashed. Pure."""
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
    for repo in resolved.stack.repositories:
        run(f"{_BUILD}/apt-repository", repo.name, repo.uri, repo.suite, " ".join(repo.components), repo.key,
            repo.key_sha256 or "-", repo.origin, str(repo.priority))  # fmt: skip
    run(f"{_BUILD}/apt-update", "--source")
    lines.append(_RESOLVE.format(packages=shlex.join(packages(resolved))))
    archives = [part for part in resolved.parts if part.choice.url]
    if any(str(part.choice.url).startswith("https:") and not part.choice.sha256 for part in archives):
        run(f"{_BUILD}/apt-install", "ca-certificates")
    for part in resolved.parts:
        choice = part.choice
        if choice.source:
            command = shlex.join([f"{_BUILD}/fetch-source", "--dsc", choice.source, choice.version])
        elif choice.url and not choice.sha256:
            run(f"{_BUILD}/fetch", choice.url, "/tmp/archive")
            command = "sha256sum </tmp/archive"
        elif choice.url:
            command = f"echo {choice.sha256}"
        else:
            continue
        lines.append(f"sum=$({command} | cut -d ' ' -f 1)\necho {part.name} $sum")
    return "\n".join(lines) + "\n"


def ask_apt(resolved: Resolved, base: BaseImage, site: Site) -> str:
    """Runs the script inside the base image.

    Raises:
        CheckFailed: a package or source is gone, or a mirror does not answer.
    """
    # The script comes through stdin: site settings are in no process list.
    command = ["docker", "run", "--rm", "-i", base.reference, "bash", "-c", "cat >/tmp/ask && bash /tmp/ask </dev/null"]
    ran = subprocess.run(command, input=script(resolved, site), capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("E:")] or ran.stderr.splitlines()[-1:]
        raise CheckFailed(
            f"apt can't resolve the stack's packages: {errors[0] if errors else 'no message'}",
            code="packages-unresolved",
            cause="a package or source does not exist (any more), or its mirror does not answer",
            next_step="correct the component's packages, or try again",
        )
    return ran.stdout


def parse_sources(text: str, resolved: Resolved) -> tuple[LockedSource, ...]:
    """The script's last part as locked sources. Pure."""
    out = []
    for line in text.partition("--- sources\n")[2].splitlines():
        name, sha256 = line.split()
        choice = resolved.part(name).choice
        out.append(
            LockedSource(component=name, version=choice.version, url=choice.url, package=choice.source, sha256=sha256)
        )
    return tuple(out)


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


def make(resolved: Resolved, base: BaseImage, site: Site) -> Lock:
    """Resolves packages, wheels and sources. Needs the engine (for apt) and the network."""
    from rocstack.image import wheels

    answer = ask_apt(resolved, base, site)
    return Lock(
        stack=resolved.stack.name,
        definition=definition_digest(resolved.stack),
        base=LockedBase(
            image=base.reference,
            how="registry" if base.how == "registry" else "mmdebstrap",
            digest=base.digest,
        ),
        packages=parse_packages(answer),
        wheels=wheels.resolve(resolved.stack, site),
        sources=parse_sources(answer, resolved),
    )
