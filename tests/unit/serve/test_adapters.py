"""What is served: headers, checks, registry and the checked copies."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_adapters as tiny

from rocstack.base.errors import BadInput
from rocstack.serve import base_model, settings
from rocstack.serve.adapter_check import Limits, check, parse_config
from rocstack.serve.registry import FolderRegistry, hint, opened
from rocstack.serve.safetensors_header import MOST_HEADER, Tensor, read_header
from rocstack.serve.staging import Staging

BASE = "llama-tiny"
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> base_model.BaseModel:
    return base_model.read_base(tiny.base(tmp_path_factory.mktemp("models") / BASE), ("meta/llama-tiny",))


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    (tmp_path / "adapters").mkdir()
    return tmp_path / "adapters"


def header_of(raw: bytes) -> dict[str, Tensor]:
    place = iter((raw[:8], raw[8:]))
    return read_header(lambda n: next(place)[:n], len(raw))


def with_header(text: str, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text.encode() + body


def test_a_header_is_read() -> None:
    raw = tiny.safetensors({"a": ((2, 3), bytes(24)), "b": ((1,), bytes(4))}, {"format": "pt"})
    assert header_of(raw) == {"a": Tensor("F32", (2, 3)), "b": Tensor("F32", (1,))}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "shorter"),
        (b"PK\x03\x04" + b"archive/data.pkl" * 9, "no safetensors file"),
        (b"\x80\x02}q\x00X" + bytes(90), "no safetensors file"),
        (struct.pack("<Q", 100) + b"{}", "more than the file has"),
        (with_header("[]"), "no mapping"),
        (with_header("{,}"), "can't be read"),
        (with_header("[" * 100_000), "nested"),
        (with_header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', bytes(4)), "twice"),
        (with_header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', bytes(4)), "as many bytes"),
        (with_header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)), "before it ends"),
        (with_header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(5)), "don't agree"),
        (with_header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(2)), "don't agree"),
        (with_header('{"a":{"dtype":"PY","shape":[1],"data_offsets":[0,4]}}', bytes(4)), "data type"),
        (with_header('{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4)), "no shape"),
        (with_header('{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(4)), "no shape"),
        (with_header('{"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}}', bytes(4)), "no shape"),
    ],
)
def test_what_is_no_header(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        header_of(raw)


def test_a_header_of_gigabytes_is_not_read() -> None:
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return struct.pack("<Q", 5 << 30)

    with pytest.raises(ValueError, match="allowed"):
        read_header(read, 6 << 30)
    assert asked == [8]
    assert MOST_HEADER < 5 << 30


def tensors(**change: Any) -> dict[str, Tensor]:
    return {name: Tensor("F32", shape) for name, (shape, _) in tiny.pairs(0, **change).items()}


def test_an_adapter_that_fits(base: base_model.BaseModel) -> None:
    found = check(tiny.settings("meta/llama-tiny", use_rslora=True), tensors(), base, Limits(16))
    assert (found.rank, found.modules) == (4, 4)
    assert found.config["target_modules"] == ["q_proj", "v_proj"]
    assert found.config["use_rslora"] is True
    assert "lora_dropout" not in found.config


def test_ranks_by_layer(base: base_model.BaseModel) -> None:
    mixed = tensors() | {
        name: tensor for name, tensor in tensors(rank=8).items() if name.startswith("base_model.model.model.layers.1.")
    }
    by_layer = {"layers.1.self_attn.q_proj": 8, "layers.1.self_attn.v_proj": 8}
    assert check(tiny.settings(BASE, rank_pattern=by_layer), mixed, base, Limits(8)).rank == 8
    with pytest.raises(BadInput, match="up to 4"):
        check(tiny.settings(BASE, rank_pattern=by_layer), mixed, base, Limits(4))


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "adapter-kind", "PREFIX"),
        ({"use_dora": True}, "adapter-kind", "use_dora"),
        ({"bias": "all"}, "adapter-kind", "bias"),
        ({"modules_to_save": ["lm_head"]}, "adapter-kind", "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "adapter-kind", "pissa"),
        ({"init_lora_weights": ["x"]}, "adapter-kind", "init_lora_weights"),
        ({"rank_pattern": {"(a+)+$": 4}}, "adapter-kind", "no layer's name"),
        ({"base_model_name_or_path": "other/model"}, "adapter-base", "other/model"),
        ({"base_model_name_or_path": None}, "adapter-base", "None"),
        ({"base_model_name_or_path": "x" * 5000}, "adapter-base", "xxx"),
        ({"r": 64}, "adapter-rank", "up to 16"),
        ({"r": True}, "adapter-rank", "True"),
        ({"r": 0}, "adapter-rank", "0"),
        ({"r": 8}, "adapter-shape", "4x64"),
        ({"lora_alpha": "nan"}, "adapter-unread", "lora_alpha"),
        ({"lora_alpha": float("inf")}, "adapter-unread", "inf"),
        ({"lora_alpha": float("nan")}, "adapter-unread", "nan"),
        ({"lora_alpha": 10**400}, "adapter-unread", "lora_alpha"),
        ({"lora_alpha": -1e7}, "adapter-unread", "at most 1,000,000"),
        ({"alpha_pattern": {"q_proj": 1e300}}, "adapter-unread", "alpha_pattern of q_proj"),
        ({"r": 10**400}, "adapter-rank", "up to 16"),
        ({"rank_pattern": {f"q{each}": 4 for each in range(10_001)}}, "adapter-unread", "rank_pattern"),
    ],
)
def test_settings_that_are_refused(base: base_model.BaseModel, change: dict[str, Any], code: str, why: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(tiny.settings(BASE) | change, tensors(), base, Limits(16))
    assert raised.value.code == code
    assert why in f"{raised.value.what}"
    assert len(raised.value.what) < 300


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "1e999", "NaN"])
def test_numbers_that_no_setting_has(number: str) -> None:
    with pytest.raises(BadInput, match="no JSON"):
        parse_config(f'{{"peft_type": "LORA", "lora_alpha": {number}}}'.encode())


def test_settings_of_any_depth_are_refused(base: base_model.BaseModel) -> None:
    """Python reads lists in each other that it can't show again."""
    for depth in (*range(900, 1000), 100_000):
        raw = f'{{"peft_type": {"[" * depth}{"]" * depth}}}'.encode()
        with pytest.raises(BadInput):
            check(parse_config(raw), tensors(), base, Limits(16))


def test_patterns_say_nothing_of_layers_that_they_do_not_name(base: base_model.BaseModel) -> None:
    """No text of the adapter becomes a regular expression, and what isn't asked for costs nothing."""
    harmful = "(.*)*" * 20 + "$"
    asked = tiny.settings(BASE) | {"target_modules": harmful, "exclude_modules": harmful}
    found = check(asked, tensors(), base, Limits(16))
    assert found.config["target_modules"] == ["q_proj", "v_proj"]
    assert harmful not in json.dumps(dict(found.config))


def test_an_adapter_of_very_many_layers_is_judged_in_one_pass() -> None:
    """A stranger's 2,000 layers and as many patterns: not each with each."""
    looks: list[str] = []

    class Counted(dict[str, tuple[int, int]]):
        def __iter__(self) -> Iterator[str]:
            for key in super().__iter__():
                looks.append(key)
                yield key

        def items(self) -> Any:
            return [(key, self[key]) for key in self]

    shapes = Counted({f"model.layers.{at}.q_proj": (8, 8) for at in range(2_000)})
    wide = base_model.BaseModel(Path("/models/wide"), frozenset(), shapes)
    of = {f"base_model.model.x.layers.{at}.q_proj.lora_{side}.weight": Tensor("F32", (1, 8) if side == "A" else (8, 1))
          for at in range(2_000) for side in "AB"}  # fmt: skip
    patterns = {f"layers.{at}.k_proj": 1 for at in range(2_000)}
    found = check(tiny.settings("wide", rank=1, rank_pattern=patterns), of, wide, Limits(16))
    assert found.modules == 2_000
    assert len(looks) == 2_000


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({FIRST: None}, "adapter-shape", "alone"),
        ({"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": Tensor("F32", (4, 64)),
          "base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight": Tensor("F32", (64, 4))},
         "adapter-shape", "has no layer"),
        ({FIRST: Tensor("F32", (4, 65))}, "adapter-shape", "4x65"),
        ({FIRST: Tensor("I8", (4, 64))}, "adapter-kind", "I8"),
        ({"base_model.model.lm_head.weight": Tensor("F32", (128, 64))}, "adapter-kind", "neither"),
        ({"x\n<script>": Tensor("F32", (1,))}, "adapter-kind", "x\\n<script>"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(base: base_model.BaseModel, change: dict[str, Any], code: str, why: str) -> None:
    changed = {name: tensor for name, tensor in (tensors() | change).items() if tensor}
    with pytest.raises(BadInput) as raised:
        check(tiny.settings(BASE), changed, base, Limits(16))
    assert raised.value.code == code
    assert why in raised.value.what


def test_an_adapter_without_tensors(base: base_model.BaseModel) -> None:
    with pytest.raises(BadInput, match="no tensors"):
        check(tiny.settings(BASE), {}, base, Limits(16))


def test_a_base_model_with_pickled_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(BadInput) as raised:
        base_model.read_base(tmp_path)
    assert raised.value.code == "base-without-safetensors"


def shared(folder: Path, layout: str = "shared") -> FolderRegistry:
    registry = FolderRegistry(
        [settings.AdapterSource.model_validate_json(json.dumps({"folder": str(folder), "layout": layout}))]
    )
    registry.rescan()
    return registry


def test_names_that_lead_elsewhere(adapters: Path, tmp_path: Path) -> None:
    tiny.adapter(tmp_path / "outside", BASE)
    tiny.adapter(adapters / "inside", BASE)
    (adapters / "link").symlink_to(tmp_path / "outside")
    registry = shared(adapters)
    for name in ("..", ".", "", "../outside", "inside/../../outside", "/etc", "link", "in\0side", "a" * 200, ".hidden"):
        assert registry.find("ann", name) is None, name
    assert [each.name for each in registry.visible("ann")] == ["inside"]


def test_a_users_link_lists_nothing_of_others(tmp_path: Path) -> None:
    """The gateway may read what she can't."""
    (tmp_path / "secret" / "project-x").mkdir(parents=True)
    (tmp_path / "users" / "ann").mkdir(parents=True)
    (tmp_path / "users" / "ann" / "adapters").symlink_to(tmp_path / "secret")
    registry = shared(tmp_path / "users", "users")
    assert registry.visible("ann") == []
    assert registry.find("ann", "project-x") is None


def test_a_users_very_many_folders_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They once ended each look, and the gateway at its start."""
    monkeypatch.setattr("rocstack.serve.registry.MOST", 20)
    monkeypatch.setattr("rocstack.serve.registry.MOST_OWN", 10)
    for at in range(50):
        tiny.adapter(tmp_path / "ann" / "adapters" / f"a{at}", BASE)
    tiny.adapter(tmp_path / "bob" / "adapters" / "b", BASE)
    registry = shared(tmp_path, "users")
    assert [each.name for each in registry.visible("bob")] == ["b"]
    assert len(registry.visible("ann")) == 10
    assert all(registry.find("ann", f"a{at}") for at in range(50))


def test_users_see_their_own(tmp_path: Path) -> None:
    for user, name in (("ann", "a"), ("ann", "both"), ("bob", "b"), ("bob", "both")):
        tiny.adapter(tmp_path / user / "adapters" / name, BASE)
    (tmp_path / "bob" / "files").mkdir()
    registry = shared(tmp_path, "users")
    assert [each.name for each in registry.visible("ann")] == ["a", "both"]
    assert registry.find("ann", "b") is None
    both = registry.find("ann", "both")
    assert both
    assert both.parts == ("ann", "adapters", "both")
    assert registry.find("../bob/adapters", "b") is None
    assert registry.visible("nobody") == []


def test_an_adapter_that_is_new_is_found_before_the_next_look(adapters: Path) -> None:
    registry = shared(adapters)
    assert registry.find("ann", "new") is None
    tiny.adapter(adapters / "new", BASE)
    assert registry.find("ann", "new")
    assert registry.rescan() == 1


def test_ten_thousand_are_registered_without_opening_one(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10_000):
        (adapters / f"adapter-{number:05}").mkdir()
    opened: list[object] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    registry = shared(adapters)
    assert registry.rescan() == 10_000
    assert len(opened) == 2, "their folder, at each look"
    assert "adapter-01234" in hint("adpter-01234", [each.name for each in registry.visible("ann")])
    assert hint("something-else-entirely", ["abc", "xyz"]) == ""


@pytest.fixture
def staging(base: base_model.BaseModel, tmp_path: Path) -> Staging:
    return Staging(tmp_path / "state", base, opened, rank=16, most_bytes=1 << 20)


def stage(staging: Staging, adapters: Path, name: str = "one") -> Any:
    found = shared(adapters).find("ann", name)
    assert found
    return staging.stage(found)


def test_a_copy_is_what_was_checked(staging: Staging, adapters: Path) -> None:
    folder = tiny.adapter(adapters / "one", BASE, seed=1)
    before = (folder / "adapter_model.safetensors").read_bytes()
    first = stage(staging, adapters)
    (folder / "adapter_model.bin").write_bytes(b"pickled")
    (folder / "adapter_model.safetensors").write_bytes(tiny.safetensors(tiny.pairs(2)))
    second = stage(staging, adapters)
    assert first.id != second.id
    assert (first.folder / "adapter_model.safetensors").read_bytes() == before
    for each in (first, second):
        assert sorted(file.name for file in each.folder.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
    assert stage(staging, adapters) == second
    staging.clear({first.id})
    assert first.folder.exists()
    assert second.folder.exists()  # used a moment ago


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def fifo(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")


def linked(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to("/etc/hostname")


def large(folder: Path) -> None:
    os.truncate(folder / "adapter_model.safetensors", 2 << 20)


def long_settings(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(" " * (2 << 20))


def no_settings(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (pickled, "adapter-pickled", "pickled"),
        (fifo, "adapter-unread", "no file"),
        (linked, "adapter-unread", "link"),
        (large, "adapter-unread", "MiB"),
        (long_settings, "adapter-unread", "1 MiB"),
        (no_settings, "adapter-unread", "isn't there"),
    ],
)
def test_files_that_are_refused(staging: Staging, adapters: Path, change: Any, code: str, why: str) -> None:
    change(tiny.adapter(adapters / "one", BASE))
    with pytest.raises(BadInput) as raised:
        stage(staging, adapters)
    assert raised.value.code == code
    assert why in raised.value.what


def test_a_refused_adapter_leaves_no_copy(staging: Staging, adapters: Path, tmp_path: Path) -> None:
    tiny.adapter(adapters / "one", "other-model")
    with pytest.raises(BadInput):
        stage(staging, adapters)
    assert list((tmp_path / "state").iterdir()) == []
