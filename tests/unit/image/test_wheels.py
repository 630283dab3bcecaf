"""pip's report as locked wheels; the report of a real run, shortened."""

from __future__ import annotations

import json
from pathlib import Path

from rocstack.image import wheels

REPORT = json.loads((Path(__file__).parents[1] / "data/pip/transformers.json").read_text())


def test_report() -> None:
    found = wheels.parse_report(REPORT, provided=("numpy", "pyyaml"))
    assert [(wheel.name, wheel.version) for wheel in found] == [
        ("huggingface-hub", "2.4.0"),
        ("pydantic-core", "2.50.4"),
        ("safetensors", "0.8.0"),
        ("transformers", "5.23.0"),
        ("typing-extensions", "4.16.0"),
    ]
    assert found[3].sha256 == ("018e82fd07490ad5bb58414f65e31576033dc7f36bed10c574843f69b90991bf",)


def test_provided_names_are_the_normal_ones() -> None:
    everything = {wheel.name for wheel in wheels.parse_report(REPORT, provided=())}
    assert {"pyyaml", "numpy", "typing-extensions"} <= everything
    assert len(everything) == len(REPORT["install"])


def test_local_versions() -> None:
    item = json.loads(json.dumps(REPORT["install"][0]))
    item["metadata"] = {"name": "torch", "version": "2.8.0+rocm6.4"}
    (torch,) = wheels.parse_report({"install": [item]}, ())
    assert torch.version == "2.8.0+rocm6.4"
    assert wheels.parse_report({"install": []}, ()) == ()
