"""Pushes built images under their release tags, and reports each tag's digest as the registry gives it back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import docker

from rocstack.base import image_names
from rocstack.base.errors import CheckFailed
from rocstack.base.words import Value
from rocstack.image.build_report import BuildReport
from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import media_type
from rocstack.registry.publish import PackedLayers, publish
from rocstack.registry.registry_http import as_engine
from rocstack.registry.repository import Repository
from rocstack.settings.settings import Settings


@dataclass(frozen=True)
class PushEvent:
    """Something to show: a sentence, or the state of one layer (bytes, uncompressed)."""

    kind: Literal["push", "layer", "retry", "kept", "moved", "done"]
    tag: str
    text: str
    layer: str = ""
    current: int = 0
    total: int = 0


class Pushed(Value):
    """One image in a registry: `tags` all name `digest` there, `sent` are those that this call made."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    sent: tuple[str, ...]
    bytes_sent: int  # compressed; layers that the registry had don't count

    @property
    def reference(self) -> str:
        """What a node pulls: tags may move, a digest can't."""
        return f"{self.repository}@{self.digest}"


def release_tags(stack: str, nic: str, settings: Settings) -> tuple[str, ...]:
    """The tags of a release, by the setting `tag` or this week.

    Raises:
        BadInput: as `image_names.release_tags`.
    """
    default = type(settings).model_fields
    release = settings.tag or image_names.week_tag(datetime.now(UTC).date())
    return image_names.release_tags(stack, nic, release, default=(default["stack"].default, default["nic"].default))


def push_images(
    client: docker.DockerClient,
    report: BuildReport,
    settings: Settings,
    *,
    move_tags: bool,
    say: Callable[[str], None],
) -> BuildReport:
    """Pushes every image of the report and notes each tag's digest, read back from the registry.

    Raises:
        CheckFailed, Missing, BadInput: as `push`.
    """
    target = image_names.parse_registry(settings.push)
    http = as_engine(client.info(), target.host)
    layers = PackedLayers(Path(settings.out) / "push" / "layers")
    images, siblings = [], list[str]()
    for image in report.images:
        path = target.path(image.role)
        with LocalImage.find(client, image.reference) as source:
            pushed = push(
                source,
                Repository(http, path, attempts=settings.attempts),
                image_names.content_tag(client.images.get(image.reference).labels["io.rocstack.content"]),
                release_tags(report.stack, report.nic, settings),
                move_tags=move_tags,
                siblings=siblings,
                packed_layers=layers,
                on_event=lambda event: None if event.kind == "layer" else say(event.text),
            )
        siblings.append(path)
        names = {f"{pushed.repository}:{tag}": pushed.digest for tag in pushed.tags}
        images.append(image.model_copy(update={"pushed": names}))
    http.close()
    return report.model_copy(update={"images": tuple(images)})


def push(
    image: LocalImage,
    repository: Repository,
    content_tag: str,
    tags: Sequence[str],
    *,
    move_tags: bool = False,
    siblings: Sequence[str] = (),
    packed_layers: PackedLayers | None = None,
    on_event: Callable[[PushEvent], None] = lambda event: None,
) -> Pushed:
    """Pushes `image` under `content_tag`, then names it by `tags`; every manifest is read back and compared.

    A content tag that the registry has is not pushed again: the image behind it gets the tags, even if this machine
    built its own from the same content. No tag is made before all of them were compared. `siblings` and
    `packed_layers` are `publish`'s.

    Raises:
        CheckFailed: a tag names another digest and `move_tags` is off; the registry holds another manifest than was
            sent; it fails for a reason that stays, or for longer than the repository's attempts.
        Missing: no login, or no registry.
    """

    def digest_of(tag: str, *, denied_is_absent: bool = False) -> str | None:
        data = repository.manifest(tag, denied_is_absent=denied_is_absent)
        return sha256(data) if data else None

    def progress(layer: str, done: int, total: int) -> None:
        on_event(PushEvent("layer", content_tag, "sending", layer, done, total))

    repository.on_retry = lambda text: on_event(PushEvent("retry", content_tag, text))
    name, sent, bytes_sent = repository.reference, list[str](), 0
    data = repository.manifest(content_tag, denied_is_absent=True)
    if data is None:
        if not move_tags:  # before gigabytes are sent for nothing
            _refuse_to_move(name, None, {tag: digest_of(tag, denied_is_absent=True) for tag in tags})
        on_event(PushEvent("push", content_tag, f"pushing {name}:{content_tag}"))
        repository.check_access()
        published = publish(
            image, repository, content_tag, siblings=siblings, packed_layers=packed_layers, progress=progress
        )
        sent.append(content_tag)
        bytes_sent, data = published.bytes_sent, published.manifest
        on_event(PushEvent("done", content_tag, f"{name}:{content_tag} is {sha256(data)}"))
    else:
        on_event(PushEvent("kept", content_tag, f"{name}:{content_tag} is there already: {sha256(data)}"))
    digest = sha256(data)
    present = {tag: digest_of(tag) for tag in tags}
    if not move_tags:
        _refuse_to_move(name, digest, present)
    for tag in tags:
        if present[tag] == digest:
            on_event(PushEvent("kept", tag, f"{name}:{tag} is there already"))
            continue
        if present[tag]:
            on_event(PushEvent("moved", tag, f"{name}:{tag} moves from {present[tag]} to {digest}"))
        repository.put_manifest(tag, data, media_type(data))
        sent.append(tag)
        on_event(PushEvent("done", tag, f"{name}:{tag} is {digest}"))
    return Pushed(repository=name, digest=digest, tags=(content_tag, *tags), sent=tuple(sent), bytes_sent=bytes_sent)


def _refuse_to_move(repository: str, digest: str | None, present: dict[str, str | None]) -> None:
    taken = {tag: other for tag, other in present.items() if other not in (None, digest)}
    if taken:
        listed = "; ".join(f"{repository}:{tag} is {other}" for tag, other in taken.items())
        raise CheckFailed(
            f"{listed}; this image is {digest or 'not in the registry yet'}",
            code="tag-exists",
            cause="another image was published under this name before",
            next_step="publish this one under another --tag, or move the name with --move-tags",
        )
