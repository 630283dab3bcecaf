"""Publishing: what engines' messages mean, and the order of things against a registry in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import ConnectionError as EngineGone

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.registry.failures import TRANSIENT, classify, registry_error
from rocstack.registry.push import Pushed, push
from rocstack.registry.pusher import Event, wait_before

TEXTS = yaml.safe_load((Path(__file__).parents[1] / "data/registry-errors.yml").read_text())
REPOSITORY = "registry.example/a/rocstack-worker"
OURS, THEIRS = "sha256:" + "a" * 64, "sha256:" + "b" * 64
CONTENT = "c-0123456789abcdef"
TAGS = ("debian-13-tcp-2026.47", "2026.47")


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']}: {case['from']}")
def test_classify(case: dict[str, str]) -> None:
    assert classify(case["text"]) == case["kind"]
    error = registry_error(case["text"], host="registry.example", reference=f"{REPOSITORY}:x")
    assert error.next_step
    assert error.cause == case["text"]


def test_only_what_may_pass_is_transient() -> None:
    assert {"busy", "unreachable"} == TRANSIENT


def test_signed_addresses_are_not_shown() -> None:
    message = 'Put "https://store.example/x?Signature=s3cret&Expires=1": EOF'
    error = registry_error(message, host="registry.example", reference="x")
    assert error.cause == 'Put "https://store.example/x?...": EOF'


def test_wait_doubles_up_to_half_a_minute() -> None:
    assert [wait_before(attempt) for attempt in range(2, 9)] == [2, 4, 8, 16, 30, 30, 30]


class Registry:
    """Enough of the SDK's client for `push`: one local image, a registry as a dict, and planned failures."""

    def __init__(self, tags: dict[str, str] | None = None, *, fails: list[Any] | None = None) -> None:
        self.tags = dict(tags or {})
        self.fails = list(fails or [])  # one for each call to the registry; None is success
        self.calls: list[str] = []
        self.known = [f"{REPOSITORY}@{OURS}"]
        self.digest = OURS
        self.images = self.api = self

    def client(self) -> DockerClient:
        return cast(DockerClient, self)

    def _call(self, call: str) -> None:
        self.calls.append(call)
        failure = self.fails.pop(0) if self.fails else None
        if failure is not None:
            raise APIError("500", explanation=failure) if isinstance(failure, str) else failure

    def get(self, image: str) -> Any:
        if image == "gone":
            raise ImageNotFound("404", explanation="No such image: gone")

        def tag(repository: str, tag: str) -> bool:
            self.digest = image.partition("@")[2] or OURS
            return True

        return SimpleNamespace(attrs={"RepoDigests": self.known}, tag=tag)

    def get_registry_data(self, name: str) -> Any:
        tag = name.rpartition(":")[2]
        self._call(f"look {tag}")
        if tag not in self.tags:
            raise NotFound("404", explanation="manifest unknown: manifest unknown")
        return SimpleNamespace(id=self.tags[tag])

    def push(self, repository: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        self._call(f"push {tag}")
        yield {"status": "Pushing", "progressDetail": {"current": 2048, "total": 29}, "id": "e38c1741f148"}
        yield {"status": "Pushed", "progressDetail": {}, "id": "e38c1741f148"}
        self.tags[tag] = self.digest
        yield {"status": f"{tag}: digest: {self.digest} size: 523"}

    def pull(self, repository: str, digest: str, **_: Any) -> Iterator[dict[str, Any]]:
        self._call(f"pull {digest}")
        yield {"status": "Pull complete", "progressDetail": {}, "id": "e38c1741f148"}


def publish(registry: Registry, **options: Any) -> tuple[Pushed, list[Event], list[float]]:
    events: list[Event] = []
    slept: list[float] = []
    done = push(
        registry.client(),
        "ours",
        REPOSITORY,
        CONTENT,
        TAGS,
        sleep=slept.append,
        on_event=events.append,
        **options,
    )
    return done, events, slept


def test_content_first_then_all_tags_are_looked_at_then_named() -> None:
    registry = Registry()
    done, events, slept = publish(registry)
    looked = [f"look {tag}" for tag in TAGS]
    named = [f"{verb} {tag}" for tag in TAGS for verb in ("push", "look")]
    assert registry.calls == [f"look {CONTENT}", *looked, f"push {CONTENT}", f"look {CONTENT}", *looked, *named]
    assert registry.tags == dict.fromkeys((CONTENT, *TAGS), OURS)
    assert done.reference == f"{REPOSITORY}@{OURS}"
    assert done.tags == done.sent == (CONTENT, *TAGS)
    assert done.bytes_sent == 3 * 2048
    assert [event.kind for event in events if event.kind != "layer"] == ["push", "done"] * 3
    assert slept == []


def test_second_push_sends_nothing() -> None:
    registry = Registry(dict.fromkeys((CONTENT, *TAGS), OURS))
    done, events, _ = publish(registry)
    assert not [call for call in registry.calls if not call.startswith("look")]
    assert (done.sent, done.bytes_sent, done.digest) == ((), 0, OURS)
    assert {event.kind for event in events} == {"kept"}


def test_taken_tag_stops_before_anything_is_sent() -> None:
    registry = Registry({TAGS[1]: THEIRS})
    with pytest.raises(CheckFailed, match=r"2026\.47 is") as caught:
        publish(registry)
    assert caught.value.code == "tag-exists"
    assert THEIRS in caught.value.what
    assert registry.tags == {TAGS[1]: THEIRS}


def test_taken_tag_is_moved_when_asked() -> None:
    registry = Registry({TAGS[1]: THEIRS})
    _, events, _ = publish(registry, move_tags=True)
    assert registry.tags[TAGS[1]] == OURS
    assert [event.tag for event in events if event.kind == "moved"] == [TAGS[1]]


def test_same_content_built_elsewhere_gets_the_tags() -> None:
    registry = Registry({CONTENT: THEIRS})
    done, _, _ = publish(registry)
    assert f"pull {THEIRS}" in registry.calls
    assert done.digest == THEIRS
    assert registry.tags == dict.fromkeys((CONTENT, *TAGS), THEIRS)


def test_transient_failures_are_waited_out() -> None:
    refused, busy = "connect: connection refused", "received unexpected HTTP status: 503 Service Unavailable"
    done, events, slept = publish(Registry(fails=[refused, busy, None, "EOF"]), attempts=3)
    assert done.sent == (CONTENT, *TAGS)
    assert slept == [2, 4, 2]
    assert "attempt 2 of 3 in 2 s" in next(event.text for event in events if event.kind == "retry")


def test_transient_failure_that_stays() -> None:
    registry = Registry(fails=["connect: connection refused"] * 9)
    with pytest.raises(Missing, match=r"registry.example can't be reached \(3 attempts\)"):
        publish(registry, attempts=3)
    assert registry.calls == [f"look {CONTENT}"] * 3


def test_permanent_failure_is_told_at_once() -> None:
    registry = Registry(fails=["x509: certificate signed by unknown authority"] * 9)
    with pytest.raises(Missing, match="does not trust"):
        publish(registry)
    assert len(registry.calls) == 1


def test_denied_lookup_of_what_may_not_exist_yet_is_left_to_the_push() -> None:
    denied = "denied: requested access to the resource is denied"
    assert publish(Registry(fails=[denied]))[0].sent == (CONTENT, *TAGS)
    registry = Registry(fails=[denied, None, None, denied])
    with pytest.raises(Missing, match="does not let you") as caught:
        publish(registry)
    assert caught.value.next_step is not None
    assert "docker login registry.example`" in caught.value.next_step
    assert registry.calls == [f"look {CONTENT}", *(f"look {tag}" for tag in TAGS), f"push {CONTENT}"]


def test_denied_lookup_of_a_tag_is_never_taken_for_a_free_name() -> None:
    with pytest.raises(Missing, match="does not let you"):
        publish(Registry({TAGS[0]: THEIRS}, fails=[*[None] * 5, "denied"]), move_tags=True)


def test_engine_that_stops_in_the_middle_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    whole, streams = registry.push, [iter([{"status": "Preparing", "id": "x"}])]
    monkeypatch.setattr(registry, "push", lambda *a, **k: streams.pop() if streams else whole(*a, **k))
    done, _, slept = publish(registry)
    assert done.sent == (CONTENT, *TAGS)
    assert slept == [2]


def test_registry_that_answers_with_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    whole = registry.push

    def race(repository: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        yield from whole(repository, tag)
        registry.tags[tag] = THEIRS

    monkeypatch.setattr(registry, "push", race)
    with pytest.raises(CheckFailed, match=f"holds {THEIRS} after {OURS} was pushed") as caught:
        publish(registry)
    assert caught.value.code == "digest-differs"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (EngineGone("Connection aborted"), "no-engine"),
        (DockerException("Credentials store error"), "no-credentials"),
    ],
)
def test_engine_or_credentials_gone(failure: Exception, code: str) -> None:
    with pytest.raises(Missing) as caught:
        publish(Registry(fails=[failure]))
    assert (caught.value.code, caught.value.exit_code) == (code, 3)


def test_no_local_image() -> None:
    registry = Registry()
    with pytest.raises(BadInput, match="there is no image 'gone'"):
        push(registry.client(), "gone", REPOSITORY, CONTENT, TAGS)
    assert registry.calls == []
