"""Pushes built images under their release tags, and reports each tag's digest as the registry gives it back."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import docker

from rocstack.base import image_names
from rocstack.base.errors import CheckFailed
from rocstack.image.build_report import BuildReport
from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import media_type
from rocstack.registry.publish import PackedLayers, made_here, publish
from rocstack.registry.registry_http import as_engine
from rocstack.registry.repository import Repository
from rocstack.settings.settings import Settings


def release_tags(stack: str, nic: str, settings: Settings) -> tuple[str, ...]:
    """The tags of a release, by the setting `tag` or this week.

    Raises:
        BadInput: as `image_names.release_tags`.
    """
    default = type(settings).model_fields
    release = settings.tag or image_names.week_tag(datetime.now(UTC).date())
    return image_names.release_tags(stack, nic, release, default=(default["stack"].default, default["nic"].default))


def push_images(
    client: docker.DockerClient, report: BuildReport, settings: Settings, *, move_tags: bool, say: Callable[[str], None]
) -> BuildReport:
    """Pushes every image of the report and notes each tag's digest, read back from the registry.

    Raises:
        CheckFailed, Missing, BadInput: as `push`.
    """
    target = image_names.parse_registry(settings.push)
    http = as_engine(client.info(), target.host)
    layers = PackedLayers(Path(settings.out) / "push" / "packed")  # here alone: `layers` of older ones had others' too
    tags = release_tags(report.stack, report.nic, settings)
    images, siblings = [], list[str]()
    for image in report.images:
        path = target.path(image.role)
        repository = Repository(http, path, attempts=settings.attempts, on_retry=say)
        built = image.image_id or image.reference  # by its id: the name may be another image's by now
        with LocalImage.find(client, built) as source:
            content = image_names.content_tag(client.images.get(built).labels["io.rocstack.content"])
            digest = push(
                source, repository, content, tags, say, move_tags=move_tags, siblings=siblings, packed_layers=layers
            )
        siblings.append(path)
        names = {f"{repository.reference}:{tag}": digest for tag in (content, *tags)}
        images.append(image.model_copy(update={"pushed": names}))
    http.close()
    return report.model_copy(update={"images": tuple(images)})


def push(
    image: LocalImage,
    repository: Repository,
    content_tag: str,
    tags: Sequence[str],
    say: Callable[[str], None],
    *,
    move_tags: bool = False,
    siblings: Sequence[str] = (),
    packed_layers: PackedLayers | None = None,
) -> str:
    """Pushes `image` under `content_tag`, then names it by `tags`; every manifest is read back and compared. The digest
    that all of them name then.

    The tags get this very image, which was built and tested here, never what lies under the content tag: who may write
    to the registry could have put it there, or other layers below its id. Two builds of one content are two images; the
    last one pushed has the content tag. No tag is made or moved before all of them were compared. `siblings` and
    `packed_layers` are `publish`'s.

    Raises:
        CheckFailed: a tag names another digest and `move_tags` is off; the registry holds another manifest than was
            sent; it fails for a reason that stays, or for longer than the repository's attempts.
        Missing: no login, or no registry.
    """

    def present(*, denied_is_absent: bool = False) -> dict[str, str]:
        found = {tag: repository.manifest(tag, denied_is_absent=denied_is_absent) for tag in tags}
        return {tag: sha256(data) for tag, data in found.items() if data}

    name, packed_layers = repository.reference, packed_layers or PackedLayers(None)
    data = repository.manifest(content_tag, denied_is_absent=True)
    other = data is not None and not made_here(data, image, packed_layers)
    if data is None or other:
        if not move_tags:  # before gigabytes are sent for nothing
            _refuse_to_move(name, None, present(denied_is_absent=True))
        if other:
            say(f"{name}:{content_tag} is another image, {sha256(data or b'')}: it gets the one that was built here")
        say(f"pushing {name}:{content_tag}")
        repository.check_access()
        own = publish(image, repository, content_tag, siblings=siblings, packed_layers=packed_layers, believed=False)
        data = own.manifest
        say(f"{name}:{content_tag} is {sha256(data)}")
    else:
        say(f"{name}:{content_tag} is there already: {sha256(data)}")
    digest, before = sha256(data), present()
    if not move_tags:
        _refuse_to_move(name, digest, before)
    for tag in tags:
        if before.get(tag) == digest:
            say(f"{name}:{tag} is there already")
            continue
        if tag in before:
            say(f"{name}:{tag} moves from {before[tag]} to {digest}")
        repository.put_manifest(tag, data, media_type(data))
        say(f"{name}:{tag} is {digest}")
    return digest


def _refuse_to_move(repository: str, digest: str | None, present: Mapping[str, str]) -> None:
    taken = "; ".join(f"{repository}:{tag} is {other}" for tag, other in present.items() if other != digest)
    if taken:
        raise CheckFailed.of("tag-exists", taken=taken, digest=digest or "not in the registry yet")
