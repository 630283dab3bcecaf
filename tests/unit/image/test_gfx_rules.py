"""The pruning rules, on file lists of real packages, on made-up names, and in dpkg itself."""

from __future__ import annotations

import fnmatch
import gzip
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstack.base.errors import BadInput
from rocstack.image import gfx_rules
from rocstack.stack import gpus

LISTS = sorted((Path(__file__).parents[1] / "data" / "filelists").glob("*.txt*"))
MI = ("gfx90a", "gfx942")
MULTIARCH = "/usr/lib/x86_64-linux-gnu"
WHEEL = "/opt/venv/lib/python3.12/site-packages/torch"


def sizes(file: Path) -> dict[str, int]:
    """Path to size in bytes."""
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
    return {path: int(size) for size, path in (line.split(" ", 1) for line in text.splitlines())}


def package(name: str) -> dict[str, int]:
    (file,) = (file for file in LISTS if file.name.startswith(name + "_"))
    return sizes(file)


def stays(path: str, gfx: Sequence[str], unused: Mapping[str, Sequence[int]] = {}) -> bool:
    """Whether dpkg unpacks the absolute `path`: of the rules that match, the last one wins."""
    kept = "path-include"
    for rule in gfx_rules.rules(gfx, unused):
        verdict, _, glob = rule.partition("=")
        kept = verdict if fnmatch.fnmatchcase(path, glob) else kept
    return kept == "path-include"


def targets(path: str) -> set[str]:
    """The targets in a file's name, read another way than by glob."""
    return set(re.findall("gfx(?:1[0-9]{2}|[89][0-9])[0-9a-f]", path.rsplit("/", 1)[1]))


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.name)
@pytest.mark.parametrize("gfx", [MI, ("gfx90a",), ("gfx1100", "gfx950"), ("gfx1010",)], ids="+".join)
def test_real_packages(file: Path, gfx: tuple[str, ...]) -> None:
    paths = sizes(file)
    assert paths
    for path in paths:
        mine = targets(path)
        assert bool(mine) == ("gfx" in path), f"the test reads no target from {path}"
        assert stays(path, gfx) == (not mine or bool(mine & set(gfx))), path


@pytest.mark.parametrize(
    ("name", "total", "after"),
    [  # bytes unpacked, before and after pruning to gfx90a and gfx942
        ("librocblas4", 4_117_923_224, 2_756_646_680),
        ("librocblas5", 925_927_040, 616_702_570),
        ("libmiopen-tests-data", 821_011_719, 480_136_702),
        ("libhipblaslt1_7.1.1+dfsg-4", 695_602_181, 219_110_262),
        ("libhipblaslt1_7.2.4+dfsg-1~exp1", 888_304_934, 224_606_803),
    ],
)
def test_bytes_saved(name: str, total: int, after: int) -> None:
    paths = package(name)
    assert sum(paths.values()) == total
    assert sum(size for path, size in paths.items() if stays(path, MI)) == after


KEPT_FOR_MI = [
    # Debian, with a feature in the name, and several targets in one name
    f"{MULTIARCH}/rocblas/4.4.1/library/Kernels.so-000-gfx90a-xnack+.hsaco",
    f"{MULTIARCH}/rocblas/4.4.1/library/TensileLibrary_gfx906_gfx90a.dat",
    # AMD
    "/opt/rocm-6.4.1/lib/rocblas/library/TensileLibrary_lazy_gfx942.dat",
    "/opt/rocm/lib/rocblas/library/TensileLibrary_Type_DD_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback_gfx90a.hsaco",
    "/opt/rocm-7.2.0/lib/hipblaslt/library/Kernels.so-000-gfx942.hsaco",
    "/opt/rocm-7.2.0/lib/hipblaslt/library/gfx942/TensileLibrary_lazy_gfx942.dat.zlib",
    "/opt/rocm/lib/hipsparselt/library/TensileLibrary_gfx942.co",
    "/opt/rocm-6.4.1/share/miopen/db/gfx90a68.kdb",
    "/opt/rocm-6.4.1/share/miopen/db/gfx942130.HIP.fdb.txt",
    "/opt/rocm-6.4.1/share/miopen/db/gfx942_metadata.tn.model",
    # wheels
    f"{WHEEL}/lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco",
    f"{WHEEL}/lib/aotriton.images/amd-gfx942/flash/attn_fwd/FONLY__a___MI300X.aks2",
    # generic: gfx942 belongs to the second only
    f"{MULTIARCH}/rocblas/5/library/Kernels.so-000-gfx9-4-generic.hsaco",
    # not for a target
    f"{MULTIARCH}/rocblas/5/library/TensileLibrary_Type_BB_HPA_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback.dat",
    f"{MULTIARCH}/hipblaslt/library/hipblasltExtOpLibrary.dat",
    f"{MULTIARCH}/hipblaslt/library/TensileLiteLibrary_lazy_Mapping.dat",
    "/opt/rocm-6.4.1/lib/rocblas/library/TensileManifest.txt",
    "/opt/rocm-6.4.1/lib/rocfft/rocfft_kernel_cache.db",
    "/opt/rocm-6.4.1/share/miopen/db/miopen.db",
    # not a kernel file
    "/opt/rocm/include/ck/ck_gfx906.hpp",
    "/usr/share/doc/gfx1100/README",
    "/usr/lib/python3/dist-packages/gfxtools/gfx803.py",
]
REMOVED_FOR_MI = [
    f"{MULTIARCH}/rocblas/4.4.1/library/Kernels.so-000-gfx906-xnack+.hsaco",
    f"{MULTIARCH}/rocblas/4.4.1/library/TensileLibrary_gfx900_gfx906.dat",
    f"{MULTIARCH}/rocblas/5/library/Kernels.so-000-gfx9-generic.hsaco",
    f"{MULTIARCH}/rocblas/5/library/Kernels.so-000-gfx11-generic.hsaco",
    "/opt/rocm-6.4.1/lib/rocblas/library/TensileLibrary_lazy_gfx908.dat",
    "/opt/rocm-6.4.1/lib/rocblas/library/TensileLibrary_lazy_gfx941.dat",
    "/opt/rocm-7.2.0/lib/hipblaslt/library/gfx950/TensileLibrary_lazy_gfx950.dat.zlib",
    "/opt/rocm-7.2.0/lib/hipblaslt/library/gfx950/extop.co",
    "/opt/rocm/lib/hipsparselt/library/TensileLibrary_gfx950.co",
    "/opt/rocm-6.4.1/share/miopen/db/gfx90878.kdb",
    "/opt/rocm-6.4.1/share/miopen/db/gfx906_60.OpenCL.fdb.txt",
    "/opt/rocm-6.4.1/share/miopen/db/gfx1030_36.HIP.fdb.txt",
    "/opt/rocm-6.4.1/share/miopen/db/gfx950_ConvHipIgemmGroupXdlops_encoder.ktn.model",
    f"{WHEEL}/share/miopen/db/gfx103036.kdb",
    f"{WHEEL}/lib/hipblaslt/library/Kernels.so-000-gfx1201.hsaco",
    f"{WHEEL}/lib/aotriton.images/amd-gfx11xx/flash/attn_fwd/FONLY__a___gfx11xx.aks2",
    f"{WHEEL}/lib/aotriton.images/amd-gfx120x/flash/attn_fwd.zip",
]


@pytest.mark.parametrize("path", KEPT_FOR_MI)
def test_stays(path: str) -> None:
    assert stays(path, MI)


@pytest.mark.parametrize("path", REMOVED_FOR_MI)
def test_goes(path: str) -> None:
    assert not stays(path, MI)


@pytest.mark.parametrize(
    ("family", "gfx"),
    [
        ("gfx11xx", "gfx1151"), ("gfx110x", "gfx1100"), ("gfx115x", "gfx1151"), ("gfx120x", "gfx1201"),
        ("gfx9-generic", "gfx906"), ("gfx10-3-generic", "gfx1036"), ("gfx11-generic", "gfx1153"),
        ("gfx12-generic", "gfx1200"), ("gfx9-4-generic", "gfx950"),
    ],
)  # fmt: skip
def test_family_of_a_kept_target_stays(family: str, gfx: str) -> None:
    path = f"{WHEEL}/lib/aotriton.images/amd-{family}/flash/attn_fwd.zip"
    assert stays(path, (gfx,))
    assert not stays(path, ("gfx90a",))
    assert not stays(path, ("gfx1010",))


numbers = st.from_regex(r"([6-9]|1[0-9])[0-9][0-9a-f]", fullmatch=True)
gfx_targets = st.builds("gfx{}".format, numbers)
folders = st.sampled_from(
    [
        f"{MULTIARCH}/rocblas/5/library/",
        "/opt/rocm-6.4.1/lib/hipblaslt/library/",
        f"{WHEEL}/lib/rocblas/library/",
    ]
)
features = st.sampled_from(["", "-xnack+", "-xnack-", ":sramecc+:xnack-", "_fallback"])
plain = st.text("ABCTensileLibrary_kdl0123456789", max_size=20).filter(lambda text: "gfx" not in text)


@given(st.data(), st.lists(gfx_targets, min_size=1, max_size=4, unique=True), folders, plain)
def test_a_kernel_file_stays_if_a_target_in_its_name_is_kept(
    data: st.DataObject, gfx: list[str], folder: str, stem: str
) -> None:
    inside = data.draw(st.lists(st.sampled_from(gfx) | gfx_targets, min_size=1, max_size=3))
    name = stem + "_".join(target + data.draw(features) for target in inside) + ".co"
    assert stays(folder + name, gfx) == bool(set(inside) & set(gfx))


@given(gfx_targets, gfx_targets, st.integers(1, 0x1FF), st.sampled_from(["{}{:x}", "{}_{}"]))
def test_miopen_names_end_in_a_number_of_compute_units(kept: str, other: str, units: int, form: str) -> None:
    path = "/opt/rocm/share/miopen/db/" + form.format(other, units) + ".HIP.fdb.txt"
    assert stays(path, (kept,)) == (kept == other)


@pytest.mark.parametrize(
    ("cards", "gone"),
    [
        (["1002:74a1"], {"gfx942e4.HIP.fdb.txt", "gfx942e4.db.txt"}),  # MI300X
        (["1002:74a0"], {"gfx942130.HIP.fdb.txt", "gfx942130.db.txt"}),  # MI300A
        (["1002:74a2"], {"gfx942130.HIP.fdb.txt", "gfx942130.db.txt"}),  # MI308X: 80 units, the nearest are 228
        (["1002:74a1", "1002:74a0"], set()),
        (["1002:74a1", "1002:740f"], {"gfx942e4.HIP.fdb.txt", "gfx942e4.db.txt", "gfx90a6e.HIP.fdb.txt"}),  # and MI210
        (["1002:74a1", "1002:ffff"], set()),  # whatever that is
        ([], set()),
    ],
)
def test_databases_of_gpus_that_no_node_has(cards: list[str], gone: set[str]) -> None:
    unused = gpus.unused_databases(cards)
    paths = package("libmiopen-tests-data")
    left = {path for path in paths if stays(path, MI, unused)}
    assert {path.rpartition("/")[2] for path in paths if stays(path, MI) and path not in left} == gone


@given(st.lists(gfx_targets, min_size=1, max_size=4), folders, plain)
def test_a_name_without_target_stays(gfx: list[str], folder: str, stem: str) -> None:
    assert stays(f"{folder}{stem}.dat", gfx)
    assert stays(f"{folder}{stem}gfx_common.dat", gfx)


@pytest.mark.parametrize("gfx", [(), ("gfx90",), ("gfx9-4-generic",), ("gfx90a", "gfx90a:xnack-"), ("gfx*",)])
def test_what_is_no_target_is_refused(gfx: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="gfx"):
        gfx_rules.rules(gfx)


def test_rules_do_not_depend_on_the_way_they_are_asked() -> None:
    rules = gfx_rules.rules(MI)
    assert rules == gfx_rules.rules(list(MI))
    assert len(rules) == len(set(rules))
    assert all(re.fullmatch(r"path-(ex|in)clude=/[A-Za-z0-9._*/\[\]-]+", rule) for rule in rules)


def sample() -> list[str]:
    """Made-up names, and every 25th of each real list."""
    return [*KEPT_FOR_MI, *REMOVED_FOR_MI, *(path for file in LISTS for path in list(sizes(file))[::25])]


def make(root: Path, paths: list[str]) -> None:
    for path in paths:
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def files_under(root: Path) -> set[str]:
    return {"/" + str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg here")
def test_dpkg_agrees(tmp_path: Path) -> None:
    paths, tree, root, deb = sample(), tmp_path / "tree", tmp_path / "root", tmp_path / "kernels.deb"
    make(tree, paths)
    (tree / "DEBIAN").mkdir()
    control = "Package: kernels\nVersion: 1\nArchitecture: all\nMaintainer: me\nDescription: -\n"
    (tree / "DEBIAN/control").write_text(control)
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, deb], check=True, capture_output=True)
    admin = root / "var/lib/dpkg"
    (admin / "updates").mkdir(parents=True)
    (admin / "info").mkdir()
    (admin / "status").touch()
    install = ["dpkg", f"--root={root}", "--force-not-root,bad-path,unsafe-io", "--log=/dev/null"]
    done = subprocess.run(
        [*install, *(f"--{rule}" for rule in gfx_rules.rules(MI)), "--install", deb],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(root / "var")
    assert files_under(root) == {path for path in paths if stays(path, MI)}
