"""What apt says inside the base image, and pip's report, as locked packages and wheels; of real runs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from resolved_stack import join
from wheel_index import add_wheel, served

from rocstack.base.errors import CheckFailed
from rocstack.image import pinning
from rocstack.settings.site import Site
from rocstack.stack import lock, stack

WHEELS = json.loads((Path(__file__).parents[1] / "data/pip/transformers.json").read_text())  # pip's report, shortened
RECORDED = (Path(__file__).parents[1] / "data/apt/munge.txt").read_text()


def test_packages() -> None:
    found = {package.name: package for package in pinning.parse_packages(RECORDED)}
    assert list(found) == sorted(found)
    assert len(found) == 11
    assert found["munge"].version == "0.5.16-1.1~deb13u1"
    assert found["munge"].sha256 == "2e26ea38f9128984d258b0f4b8e0603db7848be92629c36409563b7fae8a0e73"
    assert found["zlib1g"].version == "1:1.3.dfsg+really1.3.1-1+deb13u1"
    assert found["libstdc++6"].sha256 == "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0"
    assert all(package.sha256 for package in found.values())


def test_what_apt_would_install_stands_above_what_the_base_has() -> None:
    text = f"a=2\na=1\nb=1\n---\nPackage: a\nVersion: 2\nSHA256: {'ab' * 32}\n--- sources\n"
    assert [(p.name, p.version, p.sha256) for p in pinning.parse_packages(text)] == [
        ("a", "2", "ab" * 32),
        ("b", "1", None),
    ]


def test_the_sum_is_of_the_same_version() -> None:
    text = f"a=2\n---\nPackage: a\nVersion: 1\nSHA256: {'ab' * 32}\n"
    assert pinning.parse_packages(text)[0].sha256 is None


@pytest.mark.parametrize("text", ["", "---\n", "---\n--- sources\n"])
def test_nothing(text: str) -> None:
    assert pinning.parse_packages(text) == ()


@pytest.mark.parametrize("nic", ["tcp", "broadcom"])
def test_asked_for(nic: str) -> None:
    joined = join(nic=nic)
    wanted = pinning.packages(joined.resolved)
    assert len(set(wanted)) == len(wanted)
    assert {"slurmd", "slurmctld", "munge", "tini"} <= set(wanted)
    facts = [json.loads(joined.render().files[f"facts/{role}.json"].data) for role in ("worker", "control")]
    assert set(wanted) == {package for fact in facts for packages in fact["packages"].values() for package in packages}


def test_wheels() -> None:
    found = pinning.parse_report(WHEELS, provided=("numpy", "pyyaml"))
    assert [(wheel.name, wheel.version) for wheel in found] == [
        ("huggingface-hub", "2.4.0"),
        ("pydantic-core", "2.50.4"),
        ("safetensors", "0.8.0"),
        ("transformers", "5.23.0"),
        ("typing-extensions", "4.16.0"),
    ]
    assert found[3].sha256 == ("018e82fd07490ad5bb58414f65e31576033dc7f36bed10c574843f69b90991bf",)


def test_provided_names_are_the_normal_ones() -> None:
    everything = {wheel.name for wheel in pinning.parse_report(WHEELS, provided=())}
    assert {"pyyaml", "numpy", "typing-extensions"} <= everything
    assert len(everything) == len(WHEELS["install"])


def test_local_versions() -> None:
    item = json.loads(json.dumps(WHEELS["install"][0]))
    item["metadata"] = {"name": "torch", "version": "2.8.0+rocm6.4"}
    (torch,) = pinning.parse_report({"install": [item]}, ())
    assert torch.version == "2.8.0+rocm6.4"
    assert pinning.parse_report({"install": []}, ()) == ()


def test_keys() -> None:
    chosen = stack.load("rocm-7.2-ubuntu-24.04")
    said = f"--- sources\nslurm {'ef' * 32}\n--- keys\nrocm {'ab' * 32}\ngraphics {'cd' * 32}\n"
    found = pinning.parse_keys(said, chosen)
    assert [(key.repository, key.sha256) for key in found] == [("rocm", "ab" * 32), ("graphics", "cd" * 32)]
    assert {key.url for key in found} == {chosen.repositories[0].key}
    assert pinning.parse_keys("a=1\n---\n--- sources\n--- keys\n", stack.load("debian-13")) == ()


def test_suites_are_the_same_for_the_lock_and_the_build() -> None:
    suites = (
        stack.AptSuite(suite="unstable"),
        stack.AptSuite(suite="experimental", priority=990, packages=("librccl*",)),
    )
    base = stack.load("debian-13").base
    changes = {"suites": suites, "check_valid_until": False}
    plain, changed = join(), join(base=base.model_copy(update=changes))
    for text in (pinning.script(changed.resolved, Site()), changed.dockerfile()):
        lines = [line.removesuffix(" >&2").replace("'", "").replace('"', "") for line in text.splitlines()]
        assert [line for line in lines if line.startswith("/run/rocstack/build/apt-suite")] == [
            "/run/rocstack/build/apt-suite unstable main 500",
            "/run/rocstack/build/apt-suite experimental main 990 librccl*",
        ]
        assert lines.index("touch /etc/apt/no-valid-until") < max(
            at for at, line in enumerate(lines) if line.startswith("/run/rocstack/build/apt-update")
        )
    assert lock.definition_digest(plain.resolved.stack) != lock.definition_digest(changed.resolved.stack)
    for text in (pinning.script(plain.resolved, Site()), plain.dockerfile()):
        assert "touch /etc/apt/no-valid-until" not in text


TARGETS = ("gfx90a", "gfx942")  # that the index of AMD's wheels has kernels for


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[str]:
    """Two wheel indexes on this machine: `torchs` is the component's own, `default` has names of it, too."""
    for index, name, version, needs in (
        ("torchs", "torch", "2.11.0+rocm7.2", ["triton-rocm>=1"]),
        ("torchs", "triton_rocm", "1.0", ["filelock"]),
        ("torchs", "filelock", "3.0", []),
        ("default", "triton_rocm", "9.0", []),  # a stranger's
        ("default", "torch", "2.11.0+rocm7.2", []),
        ("default", "filelock", "3.0", []),
        ("default", "filelock", "4.0", []),
        ("default", "transformers", "5.23.0", ["filelock"]),
        ("default", "torch", "2.6.0", ["triton-rocm>=1"]),
        ("default", "safetensors", "0.8.0", []),
        ("default", "peft", "0.21.2", ["torch>=1.13", "safetensors"]),
        (
            "amd",
            "torch",
            "2.13.0+rocm10.0.0",
            [
                "rocm[libraries]==10.0.0",
                *(f"amd-torch-device-{gfx}==2.13.0+rocm10.0.0; extra == 'device-{gfx}'" for gfx in TARGETS),
            ],
        ),
        *(
            ("amd", f"amd_torch_device_{gfx}", "2.13.0+rocm10.0.0", [f"rocm-sdk-device-{gfx}==10.0.0"])
            for gfx in TARGETS
        ),
        *(
            ("amd", f"rocm_sdk_{each}", "10.0.0", [])
            for each in ("core", "libraries", *(f"device_{gfx}" for gfx in TARGETS))
        ),
    ):
        add_wheel(tmp_path / index, name, version, needs)
    with served(tmp_path) as address:
        yield address


def test_a_system_package_brings_nothing_with_it(indexes: str) -> None:
    """PyTorch of the distribution: what needs it takes it as it is, and its wheel's own needs stay out."""
    chosen = stack.load("debian-13").model_copy(update={"wheels": {"peft": "0.21.2"}, "provided": ()})
    found = pinning.resolve_wheels(chosen, Site(env={"PIP_INDEX_URL": f"{indexes}/default"}))
    assert [(each.name, each.version) for each in found] == [("peft", "0.21.2"), ("safetensors", "0.8.0")]


@pytest.mark.parametrize("gfx", [("gfx942",), TARGETS])
def test_wheels_that_need_a_source_package(indexes: str, gfx: tuple[str, ...]) -> None:
    """AMD's torch needs `rocm`, of which its index has no wheel: what that would name is found all the same, with the
    kernels of the stack's targets alone."""
    chosen = stack.load("rocm-10.0-debian-13").with_gfx(gfx)
    torch = chosen.components["pytorch"].model_copy(update={"index": f"{indexes}/amd"})
    # The default index has what needs torch, and no torch of that version.
    update = {"components": {**chosen.components, "pytorch": torch}, "wheels": {"peft": "0.21.2"}}
    chosen = chosen.model_copy(update=update)
    found = pinning.resolve_wheels(chosen, Site(env={"PIP_INDEX_URL": f"{indexes}/default"}))
    kernels = [f"{each}-device-{target}" for each in ("amd-torch", "rocm-sdk") for target in gfx]
    own = [*kernels, "rocm-sdk-core", "rocm-sdk-libraries", "torch"]
    assert [each.name for each in found if each.index] == sorted(own)
    assert [each.name for each in found if not each.index] == ["peft", "safetensors"]
    made = lock.Lock(stack=chosen.name, definition=lock.definition_digest(chosen), wheels=found)
    assert not [each for each in lock.unpinned(chosen, made) if "torch" in each]
    other = lock.unpinned(chosen.with_gfx(("gfx950",)), made)
    assert "torch[device-gfx950]" in other


def test_each_wheel_comes_from_one_index(indexes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the component needs comes from its own index, whatever newer version of the name another one has."""
    chosen = stack.load("rocm-7.2-ubuntu-24.04")
    torch = chosen.components["pytorch"].model_copy(update={"index": f"{indexes}/torchs"})
    wheels = {"transformers": "5.23.0"}
    chosen = chosen.model_copy(
        update={"components": {**chosen.components, "pytorch": torch}, "wheels": wheels, "provided": ()}
    )
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, f"{indexes}/default/triton-rocm/")
    found = pinning.resolve_wheels(chosen, Site(env={"PIP_INDEX_URL": f"{indexes}/default"}))
    own = f"{indexes}/torchs"
    assert [(each.name, each.version, each.index) for each in found] == [
        ("filelock", "3.0", own),
        ("torch", "2.11.0+rocm7.2", own),
        ("transformers", "5.23.0", None),
        ("triton-rocm", "1.0", own),
    ]
    made = lock.Lock(stack=chosen.name, definition=lock.definition_digest(chosen), wheels=found)
    default, other = made.requirements(chosen.gfx)
    assert default.startswith("transformers==5.23.0 --hash=sha256:")
    assert other.splitlines()[0] == f"--index-url {own}"


@pytest.mark.parametrize("needs", ["evil @ {}/evil-1.0.tar.gz", "evil @ git+{}/evil.git", "evil @ file://{}/evil-1.0"])
def test_nothing_that_a_wheel_needs_is_built_here(indexes: str, tmp_path: Path, needs: str) -> None:
    """An archive, a repository or a folder is code, which pip would run to see what it needs, whatever the index is."""
    ran, source = tmp_path / "ran", tmp_path / "evil-1.0"
    texts = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
        "own.py": f"open({str(ran)!r}, 'w').close()\n",
    }
    source.mkdir()
    with tarfile.open(tmp_path / "evil-1.0.tar.gz", "w:gz") as tar:
        for name, text in texts.items():
            (source / name).write_text(text)
            tar.add(source / name, f"evil-1.0/{name}")
    address = str(tmp_path) if "file:" in needs else indexes
    add_wheel(tmp_path / "default", "hostile", "1.0", [needs.format(address)])
    chosen = stack.load("debian-13").model_copy(update={"wheels": {"hostile": "1.0"}, "provided": ()})
    with pytest.raises(CheckFailed) as caught:
        pinning.resolve_wheels(chosen, Site(env={"PIP_INDEX_URL": f"{indexes}/default"}))
    assert not ran.exists()
    assert "a wheel needs what is not built yet" in caught.value.what
