"""Makes a lock from the world as it is now, and finds the lock that belongs to a resolved stack."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from rocstack.base import BaseImage
from rocstack.component import ROLES
from rocstack.errors import CheckFailed
from rocstack.lock import Lock, LockedBase, LockedPackage, LockedSource, definition_digest, for_stack
from rocstack.resolve import Resolved
from rocstack.site import Site

# Prints what the base holds and what apt would install over it, and the sha256 of each from the index.
# Reads the package names from stdin.
_SCRIPT = r"""
set -e
if [ -n "$ROCSTACK_SITE" ]; then set -a; eval "$ROCSTACK_SITE"; set +a; fi
apt-get -qq -o APT::Update::Error-Mode=any update >&2
mapfile -t wanted
apt-get -qq -s install --no-install-recommends "${wanted[@]}" |
    sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p' >/tmp/inst
dpkg-query -W -f '${Package}=${Version}\n' >>/tmp/inst
cat /tmp/inst
echo ---
xargs -a /tmp/inst apt-cache show --no-all-versions | grep -E '^(Package|Version|SHA256):'
"""


def for_resolved(resolved: Resolved, file: Path | None) -> Lock | None:
    return for_stack(resolved.stack, file)


def last_base(folder: Path) -> str | None:
    """The base that the last build in `folder` started from."""
    report = folder / "report.json"
    if not report.exists():
        return None
    return str(json.loads(report.read_text())["base"])


def packages(resolved: Resolved) -> tuple[str, ...]:
    """Every package any role asks for by name."""
    wanted = list(resolved.shared_packages()) + list(resolved.way.packages)
    for layer in resolved.stack.layers:
        for role in ROLES:
            wanted += resolved.layer_packages(layer, role)
    return tuple(dict.fromkeys(wanted))


def lock_packages(resolved: Resolved, base: BaseImage, site: Site) -> tuple[LockedPackage, ...]:
    """Asks apt inside the base image what it would install.

    Raises:
        CheckFailed: a package is gone, or the mirror does not answer.
    """
    command = ["docker", "run", "--rm", "-i", "--env", "ROCSTACK_SITE", base.reference, "bash", "-c", _SCRIPT]
    ran = subprocess.run(
        command,
        input="\n".join(packages(resolved)) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**_environ(), "ROCSTACK_SITE": site.env_file()},
    )
    if ran.returncode != 0:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("E:")] or ran.stderr.splitlines()[-1:]
        raise CheckFailed(
            f"apt can't resolve the stack's packages: {errors[0] if errors else 'no message'}",
            code="packages-unresolved",
            cause="a package is not in the distribution (any more), or its mirror does not answer",
            next_step="correct the component's packages, or try again",
        )
    return parse_packages(ran.stdout)


def parse_packages(text: str) -> tuple[LockedPackage, ...]:
    """The script's output as locked packages. Pure."""
    chosen, _, shown = text.partition("---\n")
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
    from rocstack import wheels

    sources = tuple(
        LockedSource(component=part.name, version=part.choice.version, url=part.choice.url, sha256=part.choice.sha256)
        for part in resolved.parts
        if part.choice.url and part.choice.sha256
    )
    return Lock(
        stack=resolved.stack.name,
        definition=definition_digest(resolved.stack),
        base=LockedBase(
            image=base.reference,
            how="registry" if base.how == "registry" else "mmdebstrap",
            digest=base.digest,
        ),
        packages=lock_packages(resolved, base, site),
        wheels=wheels.resolve(resolved.stack, site),
        sources=sources,
    )


def _environ() -> dict[str, str]:
    import os

    return dict(os.environ)
