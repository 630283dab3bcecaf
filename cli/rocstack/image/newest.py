"""Asks a stack's own sources what they have now: apt in the base image, pip on this machine, the base's registry."""

import re
import shlex
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import docker
import docker.errors
import requests.exceptions

from rocstack.base.text import visible
from rocstack.image import pinning
from rocstack.image.base_image import BaseImage
from rocstack.settings.site import Site
from rocstack.stack.lock import Lock
from rocstack.stack.newer import AptNews, Newer, NewerPackage
from rocstack.stack.resolve import Resolved
from rocstack.stack.stack import Stack

_AT_ONCE = 4  # questions to wheel indexes
_MOST = 300  # characters of somebody's message
# Of each locked package apt's candidate, where dpkg calls it newer; whether the base has it, and a new lock keeps that.
_ASK = r"""
export LC_ALL=C
cut -d ' ' -f 1 /tmp/locked | xargs apt-cache policy >/tmp/policy
awk '/^[^ ]/ {{name = $1; sub(/:$/, "", name)}} /^  Candidate: / {{print name, $2}}' /tmp/policy | sort >/tmp/candidates
apt-get -qq -s install --no-install-recommends {packages} | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | sort >/tmp/inst
sort /tmp/locked | join - /tmp/candidates | while read -r name locked candidate; do
    [ "$candidate" != '(none)' ] && dpkg --compare-versions "$candidate" gt "$locked" || continue
    base=-
    has=$(dpkg-query -W -f '${{Version}}' "$name" 2>/dev/null || true)
    if [ -n "$has" ] && dpkg --compare-versions "$has" lt "$candidate" && ! grep -qFx "$name" /tmp/inst; then
        base=base
    fi
    echo "$name $locked $candidate $base"
done >/tmp/newer
cat /tmp/newer
echo --- gone
sort /tmp/locked | join -v 1 - <(grep -v '(none)$' /tmp/candidates) | cut -d ' ' -f 1
echo --- suites
apt-cache policy | grep -oE ' [a-z]+-security/' | sort -u || true
echo --- policy
[ ! -s /tmp/newer ] || cut -d ' ' -f 1 /tmp/newer | xargs apt-cache policy
echo --- sources
"""


def script(resolved: Resolved, lock: Lock, site: Site) -> str:
    """What runs inside the base image. Pure."""
    lines = pinning.preparation(resolved, site)
    locked = "".join(f"{each.name} {each.version}\n" for each in lock.packages)
    lines.append(f"cat >/tmp/locked <<'ROCSTACK_END_OF_FILE'\n{locked}ROCSTACK_END_OF_FILE")
    lines.append(_ASK.format(packages=shlex.join(pinning.packages(resolved))))
    for part in resolved.parts:
        if part.choice.source:
            name = shlex.quote(part.choice.source)
            known = f"apt-cache showsrc --only-source {name} | sed -n 's/^Version: //p'"
            newest = f"{known} | grep -vE '~(rc|beta|alpha|pre)' | sort -V | tail -n 1"
            lines.append(f"echo {name} $({newest})")
    return "\n".join(lines) + "\n"


def parse(text: str) -> AptNews:
    """The script's output. Pure."""
    newer, _, rest = text.partition("--- gone\n")
    gone, _, rest = rest.partition("--- suites\n")
    suites, _, rest = rest.partition("--- policy\n")
    policy, _, sources = rest.partition("--- sources\n")
    tables = _tables(policy)
    found = []
    for line in newer.splitlines():
        name, locked, version, base = line.split()
        security = _is_fix(tables.get(name, []), locked, version)
        package = NewerPackage(name=name, locked=locked, newer=version, security=security, in_base=base == "base")
        found.append(package)
    return AptNews(
        newer=tuple(found),
        gone=tuple(gone.split()),
        sources={words[0]: words[1] for line in sources.splitlines() if len(words := line.split()) == 2},
        knows_security=bool(suites.strip()),
    )


def _tables(policy: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Package -> its version table as `apt-cache policy` prints it, the newest first: version, suites."""
    out: dict[str, list[tuple[str, list[str]]]] = {}
    table: list[tuple[str, list[str]]] = []
    for line in policy.splitlines():
        if head := re.fullmatch(r"(\S+):", line):
            table = out.setdefault(head[1], [])
        elif version := re.fullmatch(r" (?:\*\*\*|   ) (\S+) -?[0-9]+(?: \(.*\))?", line):
            table.append((version[1], []))
        elif (place := re.fullmatch(r" {8,}-?[0-9]+ (\S+) (\S+) \S+ Packages", line)) and table:
            table[-1][1].append(place[2].partition("/")[0])
    return out


def _is_fix(table: Iterable[tuple[str, list[str]]], locked: str, newer: str) -> bool:
    """Whether a security suite has the new version, or one between."""
    between = False
    for version, suites in table:
        if version == locked:
            return False
        between = between or version == newer
        if between and any(suite.endswith("-security") for suite in suites):
            return True
    return False


def ask_apt(resolved: Resolved, lock: Lock, base: BaseImage, site: Site) -> AptNews:
    """
    Raises:
        CheckFailed: a mirror does not answer, or the base image says something else.
    """
    answer = pinning.ask_apt(script(resolved, lock, site), base)
    with pinning.reading():
        return parse(answer)


def versions(stack: Stack, site: Site) -> dict[str, tuple[str, ...] | str]:
    """Wheel that the stack names -> the versions that its index has for the image's Python; or why pip doesn't know."""

    def ask(wheel: tuple[str, str, str | None]) -> tuple[str, ...] | str:
        name, _, index = wheel
        ran = pinning.run_pip(pinning.pip_command(stack, "index", "versions", name), index, site)
        listed = next((line for line in ran.stdout.splitlines() if line.startswith("Available versions:")), None)
        if ran.returncode == 0 and listed:
            return tuple(listed.partition(":")[2].replace(",", " ").split())
        if "connection broken" in ran.stderr:
            return f"{index or 'the default index'} doesn't answer"
        said = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
        return visible(said[-1])[:_MOST] if said else "pip said nothing"

    wheels = list(pinning.own_wheels(stack))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip((name for name, _, _ in wheels), pool.map(ask, wheels), strict=True))


def of_base(client: docker.DockerClient, lock: Lock) -> list[Newer]:
    """A base from a registry, by the digest that its tag has there now."""
    base = lock.base
    if base is None or base.how != "registry":
        return []
    row = Newer(name=base.image, kind="base", locked=base.digest[:19], rules="not looked up")
    try:
        digest = str(client.images.get_registry_data(base.image).id)
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        reason = visible(str(getattr(error, "explanation", None) or error))[:_MOST]
        return [row.model_copy(update={"why": f"its registry doesn't answer: {reason}"})]
    if digest == base.digest:
        return []
    return [row.model_copy(update={"newer": digest[:19], "rules": "no rule", "why": "the same tag, another image"})]
