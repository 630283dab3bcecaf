"""Files: uploaded by the stock client, checked, counted, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy
from conftest import CHAT, Site, lines
from fake_slurmrestd import token
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from rocstack.service import audit, dataset, uploads
from rocstack.service.failures import RequestRefused, TooBig
from rocstack.service.files import named
from rocstack.service.tables import AuditLine, UploadPart

pytestmark = pytest.mark.anyio
GOOD = lines(CHAT)


async def put(client: httpx.AsyncClient, data: bytes, name: str = "chat.jsonl", purpose: str = "fine-tune") -> Any:
    return await client.post("/v1/files", files={"file": (name, data)}, data={"purpose": purpose})


async def test_a_file_comes_lies_there_and_goes(site: Site) -> None:
    alice = site.of("alice")
    made = (await put(alice, GOOD)).json()
    assert (made["object"], made["filename"], made["bytes"], made["samples"]) == ("file", "chat.jsonl", len(GOOD), 4)
    path = site.data / "alice" / "files" / f"{made['id']}.jsonl"
    assert path.read_bytes() == GOOD
    assert [each["id"] for each in (await alice.get("/v1/files")).json()["data"]] == [made["id"]]
    assert (await alice.get(f"/v1/files/{made['id']}/content")).content == GOOD
    assert (await alice.delete(f"/v1/files/{made['id']}")).json()["deleted"]
    assert not path.exists()
    assert (await alice.get(f"/v1/files/{made['id']}")).status_code == 404
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_its_owner_may_read_it_and_nobody_else(site: Site) -> None:
    made = (await put(site.of("alice"), GOOD)).json()
    folder = site.data / "alice" / "files"
    for path, right in ((folder / f"{made['id']}.jsonl", "r-x"), (folder, "r-x"), (folder.parent, "r-x")):
        said = subprocess.run(["getfacl", "-cpn", path], capture_output=True, text=True, check=True).stdout.split()
        assert f"user:2000:{right}" in {each.split("#")[0] for each in said}, (path, said)
        assert "other::---" in said
        assert path.stat().st_mode & 0o007 == 0


async def test_nobody_sees_anothers(site: Site) -> None:
    key = (await put(site.of("alice"), GOOD)).json()["id"]
    bob = site.of("bob")
    assert (await bob.get("/v1/files")).json()["data"] == []
    for answer in (
        await bob.get(f"/v1/files/{key}"),
        await bob.get(f"/v1/files/{key}/content"),
        await bob.delete(f"/v1/files/{key}"),
        await bob.get("/v1/files", params={"after": key}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no-such-file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it has no lines"),
        (b"no json\n", "line 1: no JSON"),
        (b'{"text": "a"}\n[1]\n', "line 2: no JSON object"),
        (b'{"prompt": "a"}\n', "line 1: neither `messages` nor `text`; it has 'prompt'"),
        (b'{"text": ""}\n', "line 1: its text is empty"),
        (b'{"text": "a"}\n\xff\n', "line 2: no UTF-8 at byte 1"),
        (b'{"text": NaN}\n', "line 1: NaN is no number"),
        (lines([{"text": "a"}, CHAT[0]]), "line 2: it has conversations, the lines above have text"),
        (lines([{"messages": [{"role": "user", "content": "a"}]}]), "line 1: it has no answer"),
        (lines([{"messages": [{"role": "robot", "content": "a"}]}]), "line 1: message 1 has the role 'robot'"),
        (lines([{"messages": [{"role": "assistant", "content": "a"}]}]), "line 1: it begins with an answer"),
        (lines([{"messages": [{"role": "user", "content": None}]}]), "line 1: message 1 has no text"),
        (lines([{"text": "a", "n": 1}, {"text": "a", "n": "x"}]), "line 2: 'n' is text, in the lines above a number"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"text": "a"}\n{"text": "\\ud83d"}\n', "line 2: it has half of a character"),
        (lines(["x"] * 9), "line 1, 2, 3, 4, 5: no JSON object; and 4 lines more"),
    ],
)
async def test_what_cannot_train_is_refused_with_its_lines(site: Site, text: bytes, said: str) -> None:
    alice = site.of("alice")
    answer = await put(alice, text)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "untrainable", "file")
    assert said in error["message"]
    assert (await alice.get("/v1/files")).json()["data"] == []
    assert not os.listdir(site.data / "alice" / "uploads")


@given(st.lists(st.binary(max_size=60) | st.from_type(dict).map(lambda each: json.dumps(str(each)).encode())))
def test_whatever_a_file_has_it_is_refused_in_words_or_trains(rows: list[bytes]) -> None:
    found = None
    with suppress(RequestRefused):  # and nothing else
        found = dataset.check(rows)
    assert found is None or found.samples > 0


def test_no_depth_is_read_that_cannot_be_written() -> None:
    for depth in range(900, 1001):
        with suppress(RequestRefused):
            dataset.check([b'{"text": "\\u0041", "more": %b%b}' % (b"[" * depth, b"]" * depth)])


@pytest.mark.parametrize(
    ("name", "kept"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\a.jsonl", "a.jsonl"), ("<b>.jsonl", "<b>.jsonl"), ("ü.jsonl", "ü.jsonl")],
)
async def test_a_name_is_never_a_path(site: Site, name: str, kept: str) -> None:
    made = (await put(site.of("alice"), GOOD, name)).json()
    assert made["filename"] == kept
    assert sorted(os.listdir(site.data / "alice" / "files")) == [f"{made['id']}.jsonl"]


@pytest.mark.parametrize("name", ["", "/", "..", "a" * 256])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(RequestRefused):
        named(name)


@pytest.mark.parametrize("key", ["..", "%2e%2e%2fbob", "..%2F..%2Fetc%2Fpasswd", "file-0000"])
async def test_an_id_is_never_a_path(site: Site, key: str) -> None:
    answer = await site.of("alice").get(f"/v1/files/{key}/content")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_an_id_is_what_it_is_written_as(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB finds a row by its id in capitals, too; its file and its locks have the one name alone."""
    there = Session.get
    monkeypatch.setattr(Session, "get", lambda self, kind, key, **more: there(self, kind, key.lower(), **more))
    alice = site.of("alice")
    file = (await put(alice, GOOD)).json()["id"]
    begun = {"filename": "b.jsonl", "purpose": "fine-tune", "bytes": 10, "mime_type": "text/jsonl"}
    upload = (await alice.post("/v1/uploads", json=begun)).json()["id"]
    job = (await alice.post("/v1/jobs", json={"recipe": "mine", "arguments": ["true"]})).json()["id"]
    assert (await alice.delete(f"/v1/files/{file.upper()}")).status_code == 404
    assert os.listdir(site.data / "alice" / "files") == [f"{file}.jsonl"]
    assert (await alice.post(f"/v1/uploads/{upload.upper()}/cancel")).status_code == 404
    assert (await alice.post(f"/v1/jobs/{job.upper()}/cancel")).status_code == 404
    assert (await alice.delete(f"/v1/files/{file}")).status_code == 200
    assert not os.listdir(site.data / "alice" / "files")


async def test_the_limit_of_a_file_and_the_quota(site: Site) -> None:
    alice = site.of("alice")
    text = {"text": "x" * 1000}
    big = lines([text] * 2000)
    answer = await put(alice, big)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file-too-big")
    half = lines([text] * 900)
    codes = [(await put(alice, half)).status_code for _ in range(4)]
    assert codes == [200, 200, 413, 413]
    assert (await put(alice, half)).json()["error"]["code"] == "over-quota"
    assert not os.listdir(site.data / "alice" / "uploads")
    assert (await put(site.of("bob"), half)).status_code == 200


async def test_many_that_come_at_once_have_one_quota(site: Site) -> None:
    """Each began when nothing was there yet, and they end one after the other."""
    caller, files = await site.service.door.caller(token("alice")), site.service.files
    half, go = lines([{"text": "x" * 1000}] * 900), [asyncio.Event() for _ in range(5)]

    async def pieces(event: asyncio.Event) -> AsyncIterator[bytes]:
        await event.wait()
        yield half

    coming = [
        asyncio.create_task(files.create(caller, f"{n}.jsonl", pieces(event), lambda: "fine-tune"))
        for n, event in enumerate(go)
    ]
    while len(os.listdir(files.storage.parts(caller))) < len(go):
        await asyncio.sleep(0.01)
    codes = []
    for event, each in zip(go, coming, strict=True):
        event.set()
        try:
            codes.append((await each)["status"])
        except TooBig as refused:
            codes.append(refused.code)
    assert codes == ["processed", "processed", "over-quota", "over-quota", "over-quota"]
    assert (await put(site.of("alice"), half)).json()["error"]["code"] == "over-quota"
    for each in (await site.of("alice").get("/v1/files")).json()["data"]:
        await site.of("alice").delete(f"/v1/files/{each['id']}")
    assert (await put(site.of("alice"), half)).status_code == 200, "nothing of it counts on"


async def test_no_end_of_empty_ones_is_free(site: Site) -> None:
    """The disk's names are everybody's, and no quota of the file system's counts the service's."""
    alice, begun = site.of("alice"), {"bytes": 10, "filename": "a", "purpose": "fine-tune"}
    place = f"/v1/uploads/{(await alice.post('/v1/uploads', json=begun)).json()['id']}/parts"
    codes = [(await alice.post(place, files={"data": ("p", b"")})).status_code for _ in range(40)]
    assert codes == [200] * 31 + [413] * 9, "2 MiB are 32 of 64 KiB, and the upload is one"
    assert (await alice.post("/v1/uploads", json=begun)).json()["error"]["code"] == "over-quota"
    assert (await put(alice, GOOD)).json()["error"]["code"] == "over-quota"
    assert len(os.listdir(site.data / "alice" / "uploads")) == 31


async def test_no_end_of_changes_fills_the_database(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines stay, on a disk that Slurm's accounting needs."""
    monkeypatch.setattr(audit, "MOST", 20)
    alice, begun = site.of("alice"), {"bytes": 10, "filename": "a" * 255, "purpose": "fine-tune"}
    codes = []
    for _ in range(15):
        answer = await alice.post("/v1/uploads", json=begun)
        codes.append(answer.status_code)
        if answer.status_code == 200:
            assert (await alice.post(f"/v1/uploads/{answer.json()['id']}/cancel")).status_code == 200
    assert codes == [200] * 10 + [429] * 5
    assert (await put(alice, GOOD)).json()["error"]["code"] == "too-many-changes"
    assert (await put(site.of("bob"), GOOD)).status_code == 200
    lines = await site.service.database.run(lambda session: list(session.scalars(sqlalchemy.select(AuditLine.who))))
    assert lines.count("alice") == 20
    monkeypatch.setattr(audit, "DAY_S", -10)
    assert (await put(alice, GOOD)).status_code == 200


async def test_an_upload_that_ended_is_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, begun = site.of("alice"), {"bytes": 10, "filename": "a", "purpose": "fine-tune"}
    ended, open_ = [(await alice.post("/v1/uploads", json=begun)).json()["id"] for _ in range(2)]
    await alice.post(f"/v1/uploads/{ended}/cancel")
    await site.service.uploads.sweep()
    assert (await alice.get(f"/v1/uploads/{ended}")).json()["status"] == "cancelled"
    monkeypatch.setattr(uploads, "KEPT_S", -10)
    await site.service.uploads.sweep()
    assert (await alice.get(f"/v1/uploads/{ended}")).status_code == 404
    assert (await alice.get(f"/v1/uploads/{open_}")).json()["status"] == "pending"


async def test_another_purpose_and_no_file(site: Site) -> None:
    alice = site.of("alice")
    assert (await put(alice, GOOD, purpose="batch")).json()["error"]["code"] == "bad-purpose"
    answer = await alice.post("/v1/files", data={"purpose": "fine-tune"})
    assert answer.json()["error"]["code"] == "no-form"
    answer = await alice.post("/v1/files", files={"other": ("a", b"b")})
    assert answer.json()["error"]["code"] == "no-file-in-form"
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    cut = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{"text"'
    answer = await alice.post("/v1/files", content=cut, headers=head)
    assert answer.json()["error"]["code"] == "form-cut-off"
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_the_purpose_may_come_after_the_file(site: Site) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + GOOD + b"\r\n"
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--x--\r\n'
    )
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await site.of("alice").post("/v1/files", content=body, headers=head)
    assert answer.json()["bytes"] == len(GOOD)


async def test_a_file_in_parts_goes_on_where_it_broke(site: Site) -> None:
    alice = site.of("alice")
    begun = {"bytes": len(GOOD), "filename": "big.jsonl", "purpose": "fine-tune", "mime_type": "text/jsonl"}
    upload = (await alice.post("/v1/uploads", json=begun)).json()
    assert upload["status"] == "pending"
    place = f"/v1/uploads/{upload['id']}"
    halves = [GOOD[:50], GOOD[50:]]
    parts = [(await alice.post(f"{place}/parts", files={"data": ("p", half)})).json()["id"] for half in halves]
    assert [each["id"] for each in (await alice.get(place)).json()["parts"]] == parts
    short = await alice.post(f"{place}/complete", json={"part_ids": parts[:1]})
    assert short.json()["error"]["code"] == "upload-incomplete"
    wrong = await alice.post(f"{place}/complete", json={"part_ids": parts, "md5": "0" * 32})
    assert wrong.json()["error"]["code"] == "upload-other-md5"
    assert (await site.of("bob").post(f"{place}/complete", json={"part_ids": parts})).status_code == 404
    done = (await alice.post(f"{place}/complete", json={"part_ids": parts})).json()
    assert (done["status"], done["file"]["filename"], done["file"]["samples"]) == ("completed", "big.jsonl", 4)
    assert (await alice.get(f"/v1/files/{done['file']['id']}/content")).content == GOOD
    again = await alice.post(f"{place}/complete", json={"part_ids": parts})
    assert again.json()["error"]["code"] == "upload-closed"
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_an_upload_is_put_together_once_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy of its parts is on the disk meanwhile, which no quota counts, and a thread of all is at work."""
    alice, copies = site.of("alice"), list[int]()
    begun = {"bytes": len(GOOD), "filename": "a.jsonl", "purpose": "fine-tune"}
    place = f"/v1/uploads/{(await alice.post('/v1/uploads', json=begun)).json()['id']}"
    part = (await alice.post(f"{place}/parts", files={"data": ("p", GOOD)})).json()["id"]
    real = uploads._joined

    def noted(parts: list[Path], to: Path) -> str:
        digest = real(parts, to)
        time.sleep(0.1)
        copies.append(sum(name.startswith("incoming") for name in os.listdir(to.parent)))
        return digest

    monkeypatch.setattr(uploads, "_joined", noted)
    ask = [alice.post(f"{place}/complete", json={"part_ids": [part]}) for _ in range(6)]
    codes = sorted([answer.status_code for answer in await asyncio.gather(*ask)])
    assert codes == [200] + [409] * 5
    assert copies == [1]


async def test_a_part_that_comes_while_its_upload_is_dropped(site: Site) -> None:
    """It stayed on the disk for ever, and no quota counted it."""
    alice, begun, at_work = site.of("alice"), {"bytes": 10, "filename": "a", "purpose": "fine-tune"}, threading.Event()
    place = f"/v1/uploads/{(await alice.post('/v1/uploads', json=begun)).json()['id']}"

    def slow(*_: object) -> None:
        at_work.set()
        time.sleep(0.3)

    sqlalchemy.event.listen(UploadPart, "before_insert", slow)
    try:
        part = asyncio.create_task(alice.post(f"{place}/parts", files={"data": ("p", b"x" * 10)}))
        while not at_work.is_set():
            await asyncio.sleep(0.01)
        codes = [(await alice.post(f"{place}/cancel")).status_code, (await part).status_code]
    finally:
        sqlalchemy.event.remove(UploadPart, "before_insert", slow)
    assert codes == [200, 200]
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_a_part_that_comes_while_its_upload_is_put_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one fits into any; it stayed, too."""
    alice, at_work, go_on = site.of("alice"), threading.Event(), threading.Event()
    begun = {"bytes": len(GOOD), "filename": "a.jsonl", "purpose": "fine-tune"}
    place = f"/v1/uploads/{(await alice.post('/v1/uploads', json=begun)).json()['id']}"
    part = (await alice.post(f"{place}/parts", files={"data": ("p", GOOD)})).json()["id"]
    real = uploads._joined

    def slow(parts: list[Path], to: Path) -> str:
        at_work.set()
        go_on.wait(60)
        return real(parts, to)

    monkeypatch.setattr(uploads, "_joined", slow)
    done = asyncio.create_task(alice.post(f"{place}/complete", json={"part_ids": [part]}))
    try:
        while not at_work.is_set():
            await asyncio.sleep(0.01)
        empty = await alice.post(f"{place}/parts", files={"data": ("p", b"")})
    finally:
        go_on.set()
    assert [empty.status_code, (await done).status_code] == [200, 200]
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_an_upload_that_is_dropped_or_too_large(site: Site) -> None:
    alice = site.of("alice")
    begun = {"bytes": 10 << 30, "filename": "big.jsonl", "purpose": "fine-tune"}
    assert (await alice.post("/v1/uploads", json=begun)).json()["error"]["code"] == "file-too-big"
    upload = (await alice.post("/v1/uploads", json=begun | {"bytes": 10})).json()
    place = f"/v1/uploads/{upload['id']}"
    too_much = await alice.post(f"{place}/parts", files={"data": ("p", b"x" * 11)})
    assert too_much.status_code == 413
    await alice.post(f"{place}/parts", files={"data": ("p", b"x" * 6)})
    assert (await alice.post(f"{place}/parts", files={"data": ("p", b"x" * 6)})).status_code == 413
    assert (await alice.post(f"{place}/cancel")).json()["status"] == "cancelled"
    assert (await alice.post(f"{place}/parts", files={"data": ("p", b"x")})).json()["error"]["code"] == "upload-closed"
    assert not os.listdir(site.data / "alice" / "uploads")


async def test_lines_of_ever_other_keys_fill_no_memory() -> None:
    rows = [json.dumps({"text": "a", **{f"k{line}-{key}": 1 for key in range(100)}}).encode() for line in range(20)]
    with pytest.raises(RequestRefused, match="line 11, 12, 13, 14, 15: the file has more than 1000 different keys"):
        dataset.check(rows)
    assert dataset.check(rows[:10]).samples == 10
