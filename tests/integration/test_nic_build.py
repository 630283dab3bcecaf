"""`rocstack build --nic broadcom` for virtual nodes: the way is chosen from their profiles, the library compiled from a
stand-in for the vendor's source, and the image judged; then the same image on such nodes."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import broadcom_standin
import pytest
from workspace import Outcome, Workspace, engine, inspect

from rocstack.node.profile import NodeProfile
from rocstack.probe import profiles, recordings
from rocstack.virtual import faults, machine, model
from rocstack.virtual.tree import record

pytestmark = pytest.mark.engine
PROVIDER = "libbnxt_re-rdmav34.so"
OWN = f"/usr/lib/x86_64-linux-gnu/libibverbs/{PROVIDER}"


@pytest.fixture(scope="module")
def vendor(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as the vendor delivers it, with the stand-in's source (kernel ABI 6) in it."""
    folder = tmp_path_factory.mktemp("vendor")
    tarball = broadcom_standin.make_tarball(folder, source=broadcom_standin.fetch_source(base))
    bundle = broadcom_standin.make_bundle(tarball, folder)
    tarball.unlink()
    return bundle


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[NodeProfile, Path]]:
    """Virtual nodes by name: a profile, and the tree that is a container's /sys."""
    made = {}
    for name, wrong in {"old": ["abi=1"], "new": ["abi=6", f"driver={broadcom_standin.VERSION}"]}.items():
        virtual = faults.apply(machine.expand(model.load("mi300x-thor2")), map(faults.parse, wrong))
        recording = record(virtual)
        folder = tmp_path_factory.mktemp(name)
        recording.write_tree(folder)
        made[name] = (replace(recordings.profiles([recording])[0], name=name), folder)
    return made


Build = Callable[..., Outcome]


@pytest.fixture
def build(workspace: Workspace, vendor: Path, nodes: dict[str, tuple[NodeProfile, Path]]) -> Build:
    def run(*names: str, options: tuple[str, ...] = ()) -> Outcome:
        profiles.write_profiles(workspace.folder / "nodes.json", [nodes[name][0] for name in names])
        mine = ("--nic", "broadcom", "--role", "worker", "--profiles", "nodes.json", "--nic-source", str(vendor))
        return workspace.run("build", "--json", *mine, *options)

    return run


def inside(image: str, sys: Path, command: str) -> tuple[int, str]:
    """A command in a container of the image whose /sys is a virtual node's, with its RDMA device nodes."""
    make = (
        "mkdir -p /dev/infiniband; for i in 0 1 2 3 4 5 6 7; do mknod /dev/infiniband/uverbs$i c 231 $((192 + i)); done"
    )
    line = ("--rm", "--network=none", f"--volume={sys}:/sys:ro", "--entrypoint=bash", image)
    done = engine("run", *line, "-c", f"exec 2>&1; {make}; {command}", check=False)
    return done.returncode, done.stdout


def test_the_source_of_the_nodes_driver_is_compiled(
    build: Build, workspace: Workspace, nodes: dict[str, tuple[NodeProfile, Path]]
) -> None:
    done = build("new")
    assert done.code == 0, done.err + done.failures()
    version = broadcom_standin.VERSION
    assert f"source    {version}  6           new (virtual)  the host's driver is {version}" in done.err
    report = done.image("worker")
    says = f"new (virtual mi300x-thor2): kernel ABI 6, bnxt_re {broadcom_standin.VERSION} supports 6-6"
    assert report["gate"] == [{"node": "new", "result": "fits", "says": says}]
    image = workspace.reference("worker", "broadcom")
    labels = {k.removeprefix("io.rocstack."): v for k, v in inspect(image)["Config"]["Labels"].items()}
    provider = json.loads(labels["nic.providers"])[0]
    library = f"/opt/rocstack/nic/source/{PROVIDER}"
    told = {key: provider[key] for key in ("way", "version", "driver", "path", "private_abi", "kernel_abi")}
    assert told == {
        "way": "source", "version": broadcom_standin.VERSION, "driver": "bnxt_re", "path": library, "private_abi": 34,
        "kernel_abi": [6, 6],
    }  # fmt: skip
    assert labels["nic.kernel-abi"] == "6-6"
    assert labels["rehearsal"] == done.json["rehearsal"] == "no code for gfx942 and no PyTorch with ROCm"
    assert labels["nic.provider-sha256"] == provider["sha256"]
    # What was built is there, loaded, and lists the node's devices; the inbox library waits beside it.
    code, out = inside(image, nodes["new"][1], f"sha256sum {OWN}; ls {OWN}.inbox; LD_DEBUG=libs ibv_devices")
    assert code == 0
    assert provider["sha256"] in out
    assert f"calling init: {OWN}\n" in out
    assert all(f"bnxt_re{index}" in out for index in range(8))
    # The entrypoint goes as far as the MUNGE key on a node that fits, and no further than the gate on another.
    code, out = inside(image, nodes["new"][1], "rocstack-entrypoint")
    assert (code, "no MUNGE key" in out) == (3, True), out
    code, out = inside(image, nodes["old"][1], "rocstack-entrypoint")
    assert code == 1
    assert "doesn't fit: " in out
    assert "kernel ABI 1, the image's bnxt_re supports 6-6; rebuild with `rocstack build --nic broadcom" in out
    assert "no MUNGE key" not in out
    # A command runs all the same, and is told.
    code, out = inside(image, nodes["old"][1], "rocstack-entrypoint echo hello")
    assert (code, out.splitlines()[-1]) == (0, "hello")
    assert "doesn't fit" in out


def test_without_a_rehearsal_the_stack_must_have_code_for_the_nodes_gpus(
    workspace: Workspace, nodes: dict[str, tuple[NodeProfile, Path]]
) -> None:
    profiles.write_profiles(workspace.folder / "nodes.json", [nodes["new"][0]])
    done = workspace.with_env(ROCSTACK_REHEARSAL="0").run(
        "build", "--json", "--stack", "debian-13", "--nic", "tcp", "--profiles", "nodes.json"
    )
    assert done.code == 1
    error = done.json["error"]
    assert error["code"] == "stack-unusable"
    assert error["what"].startswith("stack debian-13 has no code for gfx942 and no PyTorch with ROCm")


def test_an_upgrade_does_not_bring_the_inbox_library_back(build: Build, workspace: Workspace) -> None:
    assert build("new").code == 0
    image = workspace.reference("worker", "broadcom")
    # What dpkg does with the package's file, without a package to download: it asks for the true name.
    script = f"""
    mkdir -p /p/DEBIAN /p$(dirname {OWN}); echo newer inbox >/p{OWN}
    printf '%s\\n' 'Package: ibverbs-providers' 'Version: 99.0-1' 'Architecture: amd64' 'Multi-Arch: same' \\
        'Maintainer: x' 'Description: x' >/p/DEBIAN/control
    dpkg-deb --build /p /p.deb >/dev/null; before=$(sha256sum <{OWN}); dpkg --force-all -i /p.deb >/dev/null
    [ "$before" = "$(sha256sum <{OWN})" ] && cat {OWN}.inbox
    """
    done = engine("run", "--rm", "--network=none", "--entrypoint=bash", image, "-c", script, check=False)
    assert done.stdout == "newer inbox\n", done.stdout + done.stderr


def test_a_provider_that_does_not_fit_ends_the_build(build: Build, workspace: Workspace) -> None:
    """The release's header says kernel ABI 6, and its library speaks 7: only what was built tells."""
    tarball = broadcom_standin.make_tarball(workspace.folder / "liar", source=broadcom_standin.fetch_source())
    lie(tarball)
    done = build("new", options=("--nic-source", str(tarball)))
    failure = done.failure("worker")
    assert failure["stage"] == "gate"
    assert (
        "doesn't fit: new (virtual mi300x-thor2): kernel ABI 6, the image's bnxt_re supports 7-7;" in failure["error"]
    )


def lie(tarball: Path) -> None:
    """Makes the library another than its header says."""
    files: dict[str, bytes] = {}
    with tarfile.open(tarball) as tar:
        for member in tar:
            file = tar.extractfile(member)
            files[member.name] = file.read() if file else b""
    main = next(name for name in files if name.endswith("src/main.c"))
    files[main] = re.sub(rb"(match_m(?:in|ax)_abi_version\s*=\s*)[^,]+", rb"\g<1>7", files[main])
    with tarfile.open(tarball, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))


def test_nodes_of_several_kernel_abis(
    build: Build, workspace: Workspace, nodes: dict[str, tuple[NodeProfile, Path]]
) -> None:
    refused = build("old", "new")
    assert refused.code == 2
    assert refused.json["error"]["code"] == "several-abis"
    assert refused.json["error"]["what"] == "the nodes' NIC drivers speak 2 different kernel ABIs (1: old; 6: new)"
    done = build("old", "new", options=("--nic-variants",))
    assert done.code == 0, done.err + done.failures()
    assert [row["result"] for row in done.image("worker")["gate"]] == ["fits", "fits"]
    image = workspace.reference("worker", "broadcom")
    assert inspect(image)["Config"]["Labels"]["io.rocstack.nic.kernel-abi"] == "1-1,6-6"
    for name, abi, said in (
        ("old", "abi-1", "bnxt_re 56.1-1 (kernel ABI 1-1) for this node"),
        ("new", "abi-6", f"bnxt_re {broadcom_standin.VERSION} (kernel ABI 6-6) for this node"),
    ):
        code, out = inside(image, nodes[name][1], f"rocstack-entrypoint bash -c 'readlink {OWN}; ibv_devices'")
        assert code == 0
        assert said in out
        assert f"/opt/rocstack/nic/{abi}/{PROVIDER}" in out
        assert "bnxt_re7" in out


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--nic-source", "nowhere.zip"), "no-file", "no file or folder nowhere.zip"),
        (("--nic-accept", "1.2.3.4"), "no-release", "no libbnxt_re 1.2.3.4 to accept"),
        (("--way", "newer"), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        (("--way", "package"), "no-repository", "way 'package' needs the vendor's apt repository"),
        (("--way", "inbox"), "unfit", "kernel ABI 6, the image's bnxt_re supports 1-1"),
        (("--way", "host"), "unfit", "no bnxt_re library on the host to mount"),
        (("--way", "sauce"), "unknown-way", "NIC profile 'broadcom' has no way 'sauce': did you mean 'source'?"),
        (("--inventory", "hosts.yml"), "one-source", "--profiles and --inventory can't be combined"),
    ],
)
def test_refused_before_anything_is_built(
    options: tuple[str, ...], code: str, says: str, build: Build, workspace: Workspace
) -> None:
    done = build("new", options=options)
    assert done.code == (1 if code == "unfit" else 2), done.out
    assert done.json["error"]["code"] == code
    assert says in done.json["error"]["what"]
    assert not (workspace.folder / ".rocstack").exists()
