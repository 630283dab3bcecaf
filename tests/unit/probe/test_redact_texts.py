"""What names a site goes from whatever was said about it, too; and nothing that the project needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstack.node.recording import Recording
from rocstack.probe.redact import Redaction, mask

KEY = b"0" * 32
NAMES = st.from_regex(r"[a-z]{4,8}-[0-9]{2,4}(\.[a-z]{5,8}\.[a-z]{3})?", fullmatch=True)
PEOPLE = st.from_regex(r"q[a-z]{4,9}z", fullmatch=True)
MACS = st.binary(min_size=6, max_size=6).filter(lambda raw: len(set(raw)) > 2)
KEYS = st.from_regex(r"[A-Z][A-Za-z0-9]{19}[0-9]", fullmatch=True)
BEFORE = ("", " ", "x: ", "at=", '"', "(", "/", "[", ",", "\n", "slurmd-", "= ")
AFTER = ("", " ", ",", '"', ")", ":", "/", "]", "\n", ".", " |")


@given(NAMES, PEOPLE, MACS, KEYS, st.ip_addresses(v=4).filter(lambda a: a.is_global and not a.is_multicast), st.data())
def test_nothing_that_is_known_survives_in_any_text(
    name: str, person: str, mac: bytes, secret: str, address: Any, data: st.DataObject
) -> None:
    """Wherever it stands in what a program said, and however it is spelt."""
    octets = mac.hex(":")
    files = {"/sys/class/net/eth0/address": octets + "\n"}
    redaction = Redaction(KEY, [Recording(host=name, files=files)], [(name,)], {person: "user", secret: "masked"})
    short = name.partition(".")[0]
    spelt = {
        **dict.fromkeys((name, name.upper(), short, f"nfs.{name}", f"{person}@{name}"), short),
        **dict.fromkeys((person, f"/home/{person}/x", f"{person}@example.com", f"/data/{person}/run"), person),
        **dict.fromkeys((octets, octets.upper(), mac.hex(), f"0x{mac.hex()}", mac.hex("-")), mac.hex()),
        **dict.fromkeys((secret, f"password={secret}", f"https://x:{secret}@{name}/"), secret),
        str(address): str(address),
    }
    words = data.draw(st.lists(st.sampled_from(sorted(spelt)), min_size=1, max_size=6))
    pairs = [(data.draw(st.sampled_from(BEFORE)), data.draw(st.sampled_from(AFTER))) for _ in words]
    text = " ".join(f"{before}{word}{after}" for word, (before, after) in zip(words, pairs, strict=True))
    value = {"said": [text], text: {"deep": text}, "n": 7, "none": None}
    masked = json.dumps(redaction.value({"said": value["said"], "other": value[text], "n": 7, "none": None})).lower()
    bare = masked.replace(":", "").replace("-", "")
    for word in words:
        core = spelt[word].lower()
        if core == mac.hex():
            assert core not in bare, (text, masked)
        else:
            assert core not in masked, (text, masked)
    assert redaction.value(7) == 7
    assert redaction.value(None) is None


SAID = {  # what nobody told us of, but has a form that is secret or personal anywhere
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----": "b3Blbn",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ5 ann@desk": "AAAAC3",
    "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln": "eyJzdWIi",
    "MUNGE:AwQDAAC8hcUXmW4ECcz0:": "AwQDAAC8",
    "STORAGE_PASSWORD=hunter22": "hunter22",
    "'password': 'hunter22'": "hunter22",
    'password = "a hunter22"': "hunter22",
    "AWS_SECRET_ACCESS_KEY=hunter22": "hunter22",
    "aws_access_key_id = hunter22": "hunter22",
    "Authorization: Bearer hunter22hunter22": "hunter22",
    "authorization=Basic YW5uOmh1bnRlcjIy": "YW5u",
    "'Authorization': 'Digest hunter22'": "hunter22",
    "X-SLURM-USER-TOKEN: hunter22": "hunter22",
    "Cookie: a=b; session=hunter22": "hunter22",
    "sent with bearer hunter22hunter22": "hunter22",
    "login --password hunter22 --token=x": "hunter22",
    "--api-key 'my hunter22'": "hunter22",
    "StoragePass=hunter22": "hunter22",
    "ansible_become_pass: hunter22": "hunter22",
    "passphrase: hunter22": "hunter22",
    "MY_PASSWORDS=hunter22": "hunter22",
    '{"auths": {"r.example": {"auth": "YW5uOmh1bnRlcjIy"}}}': "YW5u",
    "private_key=hunter22": "hunter22",
    "got hf_abcdefghijklmnopqrstuvwx": "abcdefgh",
    "got AKIAABCDEFGHIJKLMNOP": "ABCDEFGH",
    "https://ann:hunter22@mirror.acme.corp/x": "hunter22",
    "cloning https://git.acme.corp/x": "acme",
    "mailto ann.example@acme.corp": "ann.example",
    "/home/ann/run.toml: no such file": "ann",
    "Serial Number: 692251001124": "692251001124",
    "PRODUCT_SERIAL: 692251001124": "692251001124",
    "connect to 10.20.30.40 port 6817": "10.20.30.40",
    "no route to 10.20.30.40.": "10.20.30.40",
    "mac:8c:2f:1a:02:03:aa: link up": "2f:1a",
    "addr:fe80::8e2f:1aff:fe02:3aa.": "8e2f:1aff",
    "from fd00:1:2:3::17": "fd00:1:2:3",
    "port GUID:8c2f:1a02:0300:55aa: down": "0300:55aa",
    "uuid 3b241101-e2bb-4255-8caf-4136c566a962": "3b241101",
}


@pytest.mark.parametrize("text", SAID)
def test_what_looks_secret_or_personal_goes(text: str) -> None:
    assert SAID[text] not in Redaction(KEY).said(text)


KEPT = (
    "PCI 0000:c1:00.0 gen5 x16", "12:34:56 +0000", "rocm/pytorch@sha256:" + "ab" * 32, "torch.distributed 2.6.0",
    "see https://rocm.docs.amd.com/en/latest and https://slurm.schedmd.com/srun.html",
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE",
    "step 20, loss 3.1591 (0x1.945c078000000p+1)", "libbnxt_re-rdmav34.so", "gfx942:sramecc+:xnack-", "key: value",
    "tokens_per_s: 1200", "max_tokens=8", "tokenizer: x", "--tokens 8", "passed: 12", "gst met: TRUE pass: TRUE",
    "bypass=1",
)  # fmt: skip


@pytest.mark.parametrize("text", KEPT)
def test_what_the_project_needs_stays(text: str) -> None:
    assert Redaction(KEY, (), [("n1", "control")]).said(text) == text


def test_a_version_that_looks_like_an_address_stays_where_it_is_known_as_one() -> None:
    recording = Recording(files={"/sys/class/infiniband/mlx5_0/fw_ver": "22.31.10.14\n"})
    assert Redaction(KEY, [recording]).said("firmware 22.31.10.14") == "firmware 22.31.10.14"
    assert Redaction(KEY).said("firmware 22.31.10.14") != "firmware 22.31.10.14"


def test_what_a_host_calls_itself_goes_from_its_recording() -> None:
    """The inventory may have another name for it, and only that is the recording's."""
    description = {"/sys/class/infiniband/mlx5_0/node_desc": "gpu-a-17.acme.corp mlx5_0\n"}
    (masked,) = mask([Recording(host="n1", files=description)], KEY, {"n1": "gpu-a-17.acme.corp"})
    assert masked.files == {"/sys/class/infiniband/mlx5_0/node_desc": "node-1 mlx5_0\n"}


def test_fields_that_are_secret_by_their_name_go() -> None:
    keys = ("password", "StoragePass", "api_key", "AWS_SECRET_ACCESS_KEY", "Authorization", "token")
    said = Redaction(KEY).value({"serial_number": "A1B2C3", "board": {"serial": 692251001124}, "vram": 4096})
    assert "hunter22" not in json.dumps(Redaction(KEY).value(dict.fromkeys(keys, "hunter22")))
    assert said["serial_number"] not in ("A1B2C3", "")
    assert said["board"] == {"serial": 0}
    assert said["vram"] == 4096


PIECES = (
    "a", "a_", "a.", "-", "ecdsa-sha2-", "eyJ-", "eyJaaaaaaaa.", "://a.", "MUNGE:", "password ", "secret", "secret=",
    "token\n", "--token ", "bearer ", "cookie: ", "authorization: a ", "'auth': '", "hf_", '"token":"',
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_text_of_one_piece_is_no_work(piece: str) -> None:
    """It was hours of it."""
    text = piece * (200_000 // len(piece))
    assert len(Redaction(KEY).said(text)) <= 2 * len(text)


@pytest.mark.parametrize(
    "spelt", ["\u017flurm-gpu01", "SLURM-GPU01", "slurm-gpu01", "\u0131slurm-i1", "a\u0130b-node7"]
)
def test_letters_that_a_pattern_takes_for_others(spelt: str) -> None:
    """The long s is an s to it, and the i without a dot an i."""
    redaction = Redaction(KEY, hosts=[("slurm-gpu01", "islurm-i1", "aib-node7")])
    for text in (redaction.said(f"{spelt} says"), redaction.words(f"{spelt} says"), redaction.key(f"{spelt} says")):
        assert text == "node-1 says"


def test_addresses_without_end_are_no_work() -> None:
    """A node may tell any number of them, and each goes from all that was said."""
    told = [f"02:{number:010x}" for number in range(100_000)]
    told = [":".join([each[:2], *(each[at : at + 2] for at in range(3, 13, 2))]) for each in told]
    redaction = Redaction(KEY, [Recording(host="n1", files={"/sys/x": "\n".join(told)})])
    bare = told[4711].replace(":", "")
    said = redaction.said(f"0x{bare.upper()} and ff{bare}ff " + "0123456789abcdef " * 50_000)
    assert bare not in said.lower()
    assert said.startswith("0x02")
    assert said.endswith(" 0123456789abcdef 0123456789abcdef ")


def test_serial_numbers_without_end_are_no_work() -> None:
    files = {f"/sys/{number}/serial": f"SN{number:08d}\n" for number in range(20_000)}
    redaction = Redaction(KEY, [Recording(host="n1", files=files)])
    assert "SN00000001" not in redaction.said("SN00000001 " + "some words " * 20_000)
    assert "SN00019999" not in str(redaction.recording(Recording(host="n1", files={"/sys/1/serial": "SN00019999\n"})))
