"""Gives built images their release tags and pushes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import docker

from rocstack.image.build_report import BuildReport
from rocstack.registry import push, tags
from rocstack.settings.settings import Settings


def wanted_tags(stack: str, nic: str, settings: Settings) -> tuple[str, ...]:
    """The tags of a release, by the setting `tag` or this week.

    Raises:
        BadInput: as `tags.release_tags`.
    """
    default = type(settings).model_fields
    release = settings.tag or tags.week_tag(datetime.now(UTC).date())
    return tags.release_tags(stack, nic, release, default=(default["stack"].default, default["nic"].default))


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
        CheckFailed, Missing, BadInput: as `registry.push`.
    """
    target = tags.parse_registry(settings.push)
    wanted = wanted_tags(report.stack, report.nic, settings)
    images = []
    for image in report.images:
        repository = target.repository(image.role)
        labels = client.images.get(image.reference).labels
        pushed = push.push(
            client,
            image.reference,
            repository,
            tags.content_tag(labels["io.rocstack.content"]),
            wanted,
            attempts=settings.attempts,
            move_tags=move_tags,
            on_event=lambda event: None if event.kind == "layer" else say(event.text),
        )
        images.append(image.model_copy(update={"pushed": {f"{repository}:{t}": pushed.digest for t in pushed.tags}}))
    return report.model_copy(update={"images": tuple(images)})
