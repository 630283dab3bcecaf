"""What `rocstack rebuild` tells a person."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.cli import release
from rocstack.release.difference import FileDifference, LayerDifference


def rebuilt(*layers: LayerDifference) -> Any:
    original = SimpleNamespace(diff_ids=("a", "b"), reference="r.example/x@sha256:1")
    image = SimpleNamespace(reference="rocstack-rebuild/control:x", image_id="sha256:2")
    return SimpleNamespace(layers=layers, original=original, image=image, ok=not any(each.found for each in layers))


def test_the_same_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    release._show_layers(rebuilt())
    assert capsys.readouterr().out == (
        "rocstack-rebuild/control:x: sha256:2 has the content of r.example/x@sha256:1: 2 layers, by every byte\n"
    )
    release._show_layers(rebuilt(LayerDifference(layer=2, files=9, times=3)))
    assert capsys.readouterr().out.endswith("2 layers; 3 files differ in times, or are there again as below\n")


def test_what_differs_is_shown_by_cause_and_a_path_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    found = (
        FileDifference(path="usr/[red]x\x1b[2J", how="changed", differs=("content", "mode"), cause="x: 1 -> 2"),
        FileDifference(path="etc/y", how="only in the second"),
    )
    release._show_layers(rebuilt(LayerDifference(layer=2, files=9, found=found)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["2", "9", "2", "0"]
    assert "x: 1 -> 2: 1 file: usr/[red]x\\x1b[2J (content, mode)" in lines
    assert "other: 1 file: etc/y (only in the second)" in lines
    assert lines[-1] == "rocstack-rebuild/control:x: sha256:2 differs from r.example/x@sha256:1 in 1 of 2 layers"
