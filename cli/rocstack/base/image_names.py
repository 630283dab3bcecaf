"""What images are called on the machine that builds them, on nodes, and in registries.

A registry has one repository a role, with tags by week, stack, NIC and content."""

import re
from dataclasses import dataclass
from datetime import date

from rocstack.base.errors import BadInput

_HOST = r"localhost|(?=[^/]*[.:])[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\]"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = re.compile(rf"(?P<host>(?:{_HOST})(?::\d{{1,5}})?)(?P<prefix>(?:/{_PART})*)")
_BY_DIGEST = re.compile(
    rf"(?P<host>(?:{_HOST})(?::\d{{1,5}})?)/(?P<path>{_PART}(?:/{_PART})*)@(?P<digest>sha256:[0-9a-f]{{64}})"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class RegistryAddress:
    """`host[:port][/prefix]`. `host` keeps its port: it is what `docker login` is told."""

    host: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.host}/{self.prefix}" if self.prefix else self.host

    def path(self, role: str) -> str:
        """The repository of this role's images, as the registry has it; tags don't name the role."""
        name = repository_name(role)
        return f"{self.prefix}/{name}" if self.prefix else name

    def repository(self, role: str) -> str:
        """The same with the host: what a node pulls from."""
        return f"{self.host}/{self.path(role)}"


def registry_text(text: str) -> str:
    """For a setting: nothing, or what `parse_registry` takes.

    Raises:
        ValueError: anything else.
    """
    if text:
        try:
            parse_registry(text)
        except BadInput as error:
            raise ValueError(error.what) from None
    return text


def repository_name(role: str) -> str:
    return f"rocstack-{role}"


def parse_registry(text: str) -> RegistryAddress:
    """Reads `host[:port][/prefix]`. The host needs a dot or a port, as docker would otherwise take it for a
    folder of its default registry.

    Raises:
        BadInput: says what is wrong with it.
    """
    plain = text.rstrip("/")
    match = _REGISTRY.fullmatch(plain)
    port = re.search(r":(\d+)(?:/|$)", plain)
    if match and (not port or 0 < int(port[1]) < 65536):
        return RegistryAddress(match["host"], match["prefix"].lstrip("/"))
    raise BadInput.of("bad-registry", text=text.rpartition("@")[2], why=_complaint(plain))  # before @ stand secrets


def parse_by_digest(text: str) -> tuple[str, str, str]:
    """Host, repository and digest of `host[:port]/name@sha256:...`.

    Raises:
        BadInput: it is something else.
    """
    match = _BY_DIGEST.fullmatch(text)
    if not match:
        raise BadInput.of("no-digest", text=text)
    return match["host"], match["path"], match["digest"]


def _complaint(text: str) -> str:
    host, _, prefix = text.partition("/")
    if "://" in text:
        return "write it without http:// or https://; the engine finds out by itself"
    if "@" in text:
        return "a name or password does not belong here; use `docker login`"
    if ":" in prefix:
        return "it ends in a tag; the tags are made from the week, the stack and the NIC"
    if prefix != prefix.lower():
        return "only the host may have capital letters"
    if host and not re.search(r"[.:]", host):
        return f"'{host}' has neither a dot nor a port, so it is not a host"
    return "it does not read as host[:port][/prefix]"


def local_name(prefix: str, kind: str, variant: str) -> str:
    """An image on the machine that built it. `kind` is a role, `base`, or `node` (a virtual node's)."""
    return f"{prefix}/{kind}:{variant}"


def built_name(prefix: str, role: str, stack: str, nic: str) -> str:
    """A stack's image for a NIC on the machine that built it."""
    return local_name(prefix, role, f"{stack}-{nic}")


def as_variant(reference: str) -> str:
    """An image's own name and tag (or digest, shortened) as part of another's name: small letters, digits, '.', '-'."""
    name, _, digest = reference.partition("@sha256:")
    text = name.rpartition("/")[2] + (f"-{digest[:12]}" if digest else "")
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip(".-")[:48].rstrip(".-")


def name_on_node(role: str, image_id: str) -> str:
    """The name that a deploy gives an image there, whatever id the node's engine has for it."""
    return local_name("rocstack", role, image_id.removeprefix("sha256:")[:12])


def id_tag(image_id: str) -> str:
    """The tag under which a deploy publishes an image."""
    return image_id.removeprefix("sha256:")[:16]


def week_tag(day: date) -> str:
    """ISO year and week, `2026.47`: around New Year the ISO year is not the calendar's."""
    year, week, _ = day.isocalendar()
    return f"{year}.{week:02}"


def content_tag(digest: str) -> str:
    """`c-` and the first 16 hex digits of a sha256 (with or without `sha256:` before it)."""
    match = re.fullmatch(r"(?:sha256:)?([0-9a-f]{64})", digest)
    if not match:
        raise ValueError(f"{digest!r} is not a sha256")
    return f"c-{match[1][:16]}"


def release_tags(stack: str, nic: str, release: str, *, default: tuple[str, str]) -> tuple[str, ...]:
    """Tags of one pair's images in a release (a week's tag, or a name of the user's own). The bare release is
    the `default` pair's alone: several would fight for it.

    Raises:
        BadInput: not a tag, or too long for one.
    """
    return variant_tags(f"{stack}-{nic}", release, bare=(stack, nic) == default)


def variant_tags(variant: str, release: str, *, bare: bool) -> tuple[str, ...]:
    """The same, of whatever the pair is called in tags.

    Raises:
        BadInput: not a tag, or too long for one.
    """
    tag = f"{variant}-{release}"
    if not (_TAG.fullmatch(tag) and _TAG.fullmatch(release)):
        raise BadInput.of("bad-tag", tag=tag)
    return (tag, release) if bare else (tag,)
