"""Publishes an image in a registry, and believes only what the registry says afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from docker import DockerClient

from rocstack.base.errors import CheckFailed
from rocstack.base.words import Value
from rocstack.registry.pusher import Event, Pusher


class Pushed(Value):
    """One image in a registry: `tags` all name `digest` there, `sent` are those that this call made."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    sent: tuple[str, ...]
    bytes_sent: int  # uncompressed; layers that the registry had don't count

    @property
    def reference(self) -> str:
        """What a node pulls: tags may move, a digest can't."""
        return f"{self.repository}@{self.digest}"


def push(
    client: DockerClient,
    image: str,
    repository: str,
    content_tag: str,
    tags: Sequence[str],
    *,
    attempts: int = 4,
    move_tags: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Pushed:
    """Pushes the local `image` under `content_tag`, then names it by `tags`, and reads every digest back.

    A content tag that the registry has is not pushed again: the image behind it gets the tags, even if this
    machine built its own from the same content. No tag is made before all of them were looked at.
    Local names `repository:tag` stay, as with `docker push`. `sleep` takes seconds.

    Raises:
        BadInput: no such local image, or a bad name.
        CheckFailed: a tag names another digest and `move_tags` is off; the registry holds another digest than
            was pushed; it fails for a reason that stays, or for longer than `attempts`.
        Missing: no engine, no login, or no registry.
    """
    pusher = Pusher(client, repository, attempts, sleep, on_event)
    pusher.check_local(image)
    digest = pusher.digest(content_tag, denied_is_absent=True)
    if digest is None:
        if not move_tags:  # before gigabytes are sent for nothing
            _refuse_to_move(repository, digest, {tag: pusher.digest(tag, denied_is_absent=True) for tag in tags})
        digest = pusher.send(image, content_tag)
    else:
        on_event(Event("kept", content_tag, f"{repository}:{content_tag} is there already: {digest}"))
    there = {tag: pusher.digest(tag) for tag in tags}
    if not move_tags:
        _refuse_to_move(repository, digest, there)
    todo = [tag for tag in tags if there[tag] != digest]
    source = pusher.local(image, digest) if todo else image
    for tag in tags:
        if tag not in todo:
            on_event(Event("kept", tag, f"{repository}:{tag} is there already"))
            continue
        if there[tag]:
            on_event(Event("moved", tag, f"{repository}:{tag} moves from {there[tag]} to {digest}"))
        pusher.send(source, tag, expected=digest)
    return Pushed(
        repository=repository,
        digest=digest,
        tags=(content_tag, *tags),
        sent=tuple(pusher.sent),
        bytes_sent=pusher.bytes_sent,
    )


def _refuse_to_move(repository: str, digest: str | None, there: dict[str, str | None]) -> None:
    taken = {tag: found for tag, found in there.items() if found not in (None, digest)}
    if taken:
        listed = "; ".join(f"{repository}:{tag} is {found}" for tag, found in taken.items())
        raise CheckFailed(
            f"{listed}; this image is {digest or 'not in the registry yet'}",
            code="tag-exists",
            cause="another image was published under this name before",
            next_step="publish this one under another --tag, or move the name with --move-tags",
        )
