"""A stand-in for Broadcom's release of libbnxt_re, made from the distribution's own rdma-core source (GPL2 or BSD).

It has the layout, the build steps and the names of the vendor's tarball, and speaks the kernel ABI that is asked for,
so that everything around the real one can be tried without having it. Its version starts with 900: nobody can take it
for a release. `python tests/support/broadcom_standin.py --kernel-abi 6 FOLDER` writes one.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

RDMA_CORE = "56.1"
VERSION = f"900.0.{RDMA_CORE}"
KERNEL_ABI = 6
STACK = "debian-13"

Files = dict[str, str]

_README = """\
A stand-in for Broadcom's libbnxt_re {version}, made by rocstack from rdma-core {rdma_core} to test how such a library
is built and chosen. It is no release of Broadcom's. It says that it speaks kernel ABI {kernel_abi}.
Build: sh autogen.sh && ./configure && make && make install
"""
_AUTOGEN = """\
#!/bin/sh
set -e
mkdir -p config
autoreconf --force --install
"""
# PREFIX is where the vendor's configure looks for verbs.h too; a PREFIX left in the environment misleads both.
_CONFIGURE = """\
AC_INIT([libbnxt_re], m4_esyscmd_s([sed -n 's/^#define LIBBNXT_RE_BUILD_VERSION *//p' src/version.h]))
AC_CONFIG_SRCDIR([src/main.c])
AC_CONFIG_AUX_DIR([config])
AC_CONFIG_MACRO_DIRS([config])
AC_CONFIG_HEADERS([config.h])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
LT_INIT
AC_CHECK_SIZEOF([long])
AS_IF([test -r "${{PREFIX:-/usr}}/include/infiniband/verbs.h"], ,
  [AC_MSG_ERROR([<infiniband/verbs.h> not found. libbnxt_re requires libibverbs.])])
AC_CHECK_LIB([ibverbs], [ibv_get_device_list], ,
  [AC_MSG_ERROR([ibv_get_device_list() not found. libbnxt_re requires libibverbs.])])
AH_BOTTOM([
#define HAVE_BUILTIN_CLZ 1
#define HAVE_BUILTIN_CLZL 1
#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1
#define HAVE_FUNC_ATTRIBUTE_ALWAYS_INLINE 1
#define HAVE_FUNC_ATTRIBUTE_IFUNC 1
#define HAVE_ISBLANK 1
#define HAVE_STATEMENT_EXPR 1
#define HAVE_TYPEOF 1
#define HAVE_WORKING_IF_H 1
#define IBVERBS_PABI_VERSION {private_abi}
#define RDMA_CDEV_DIR "/dev/infiniband"
#define STREAM_CLOEXEC "e"
#define VERBS_IOCTL_ONLY 0
#define VERBS_WRITE_ONLY 0
])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
"""
_MAKEFILE = """\
ACLOCAL_AMFLAGS = -I config
AM_CPPFLAGS = -I$(srcdir)/src/private
AM_CFLAGS = -D_GNU_SOURCE -fvisibility=hidden
lib_LTLIBRARIES = src/libbnxt_re.la
src_libbnxt_re_la_SOURCES = {sources}
src_libbnxt_re_la_LDFLAGS = -avoid-version -module -release rdmav{private_abi} \\
  -Wl,--version-script=$(srcdir)/src/bnxt_re.map
src_libbnxt_re_la_LIBADD = -lpthread
bnxt_reconfdir = $(sysconfdir)/libibverbs.d
bnxt_reconf_DATA = bnxt_re.driver
install-exec-hook:
	ln -sf libbnxt_re.so $(DESTDIR)$(libdir)/libbnxt_re-$(VERSION).so
"""
# What libibverbs-dev installs; everything else of libibverbs is private, and comes along.
_PUBLIC = {
    f"infiniband/{name}.h"
    for name in ("arch", "ib_user_ioctl_verbs", "opcode", "sa", "sa-kern-abi", "tm_types", "verbs", "verbs_api")
}
_HOME = {"infiniband": "libibverbs", "util": "util", "ccan": "ccan", "rdma": "kernel-headers/rdma"}


def make_tarball(
    folder: Path,
    version: str = VERSION,
    kernel_abi: int = KERNEL_ABI,
    private_abi: int | None = None,
    source: Path | None = None,
) -> Path:
    """Writes `libbnxt_re-VERSION.tar.gz` into `folder`; the same arguments give the same bytes.

    `private_abi` is the source's own (34) unless another is asked for: that library fits no libibverbs at hand.
    `source` is rdma-core's original archive; without one it is fetched once and kept in the user's cache.
    """
    archive = read_source(source or fetch_source())
    target = folder / f"libbnxt_re-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pack(f"libbnxt_re-{version}", make_files(archive, version, kernel_abi, private_abi)))
    return target


def make_bundle(tarball: Path, folder: Path, release: str = "bcm5760x_900.2.56.0a") -> Path:
    """Writes RELEASE.zip, nested as the vendor's is: drivers_linux/bnxt_rocelib/ holds the library."""
    target = folder / f"{release}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:

        def add(name: str, data: bytes) -> None:
            bundle.writestr(zipfile.ZipInfo(f"{release}/{name}"), data, zipfile.ZIP_DEFLATED)

        add("README.txt", b"A stand-in for a vendor's bundle, made by rocstack.\n")
        add("drivers_linux/bnxt_en/README", b"the kernel driver would be here\n")
        add(f"drivers_linux/bnxt_rocelib/{tarball.name}", tarball.read_bytes())
    return target


def make_files(source: Mapping[str, str], version: str, kernel_abi: int, private_abi: int | None) -> Files:
    """Path in the tarball's folder -> text. Pure."""
    (own,) = re.findall(r'set\(IBVERBS_PABI_VERSION "(\d+)"\)', source["CMakeLists.txt"])
    provider = {Path(path).name: text for path, text in source.items() if path.startswith("providers/bnxt_re/")}
    code = {name: text.replace('"bnxt_re-abi.h"', '"abi.h"') for name, text in provider.items()}
    guard = "#define __BNXT_RE_ABI_H__\n"
    code["abi.h"] = code.pop("bnxt_re-abi.h").replace(guard, f"{guard}\n#define BNXT_RE_ABI_VERSION {kernel_abi}\n")
    # The vendor's table knows Thor2; rdma-core's finds it by the driver's netlink id only.
    code["main.c"] = code["main.c"].replace(
        "\tCNA(BROADCOM, 0x1750),", "\tCNA(BROADCOM, 0x1760),\t/* BCM57608 */\n\tCNA(BROADCOM, 0x1750),"
    )
    code["version.h"] = f"#ifndef VERSION_H\n#define VERSION_H\n#define LIBBNXT_RE_BUILD_VERSION {version}\n#endif\n"
    private = _private(source, "".join(code.values()))
    words = {
        "version": version,
        "kernel_abi": kernel_abi,
        "private_abi": private_abi or int(own),
        "rdma_core": RDMA_CORE,
        "sources": " ".join(f"src/{name}" for name in sorted([*code, *private]) if name.endswith(".c")),
    }
    return {
        "README": _README.format(**words),
        **{name: text for name, text in source.items() if name.startswith("COPYING.")},
        "autogen.sh": _AUTOGEN,
        "configure.ac": _CONFIGURE.format(**words),
        "Makefile.am": _MAKEFILE.format(**words),
        "bnxt_re.driver": "driver bnxt_re\n",
        "src/bnxt_re.map": "{\n  local: *;\n};\n",
        **{f"src/{name}": text for name, text in {**code, **private}.items()},
    }


def _private(source: Mapping[str, str], code: str) -> Files:
    """The headers of rdma-core that `code` reaches and no package installs, with the .c files that belong to them."""
    out: Files = {}
    wanted = _included(code)
    while (name := next(wanted, None)) is not None:
        folder, _, file = name.partition("/")
        if f"private/{name}" in out or name in _PUBLIC or not file:
            continue
        if folder == "kernel-abi":
            text = _abi_structs(source[f"kernel-headers/rdma/{file}"])
        elif f"{_HOME.get(folder)}/{file}" in source:
            text = source[f"{_HOME[folder]}/{file}"]
        else:
            continue  # of the system
        if name == "rdma/bnxt_re-abi.h":
            text = re.sub(r"#define BNXT_RE_ABI_VERSION.*\n", "", text)  # abi.h says it
        out[f"private/{name}"] = text
        body = name.removesuffix(".h") + ".c"
        if folder in ("util", "ccan") and body in source:
            out[f"private/{body}"] = source[body]
            text += source[body]
        wanted = iter([*wanted, *_included(text, folder)])
    return out


def _included(text: str, folder: str = "") -> Iterator[str]:
    for bracket, name in re.findall(r'^\s*#\s*include\s+([<"])([\w./-]+)[>"]', text, re.MULTILINE):
        yield name if bracket == "<" or "/" in name else f"{folder}/{name}"


def _abi_structs(text: str) -> str:
    """Every struct as a macro that a provider's own structs include, as rdma-core's make_abi_structs.py does it."""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", text)
    found = re.findall(r"^(struct|union)\s+(\w+)\s+(\{.*?^\}[^;\n]*);", bare, re.MULTILINE | re.DOTALL)
    return "".join(f"#define _STRUCT_{name} {kind} " + body.replace("\n", " \\\n") + "\n" for kind, name, body in found)


def pack(top: str, files: Mapping[str, str]) -> bytes:
    """A .tar.gz that depends on nothing but its content."""
    return gzip.compress(_tar({f"{top}/{name}": text.encode() for name, text in files.items()}), mtime=0)


def _tar(files: Mapping[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def read_source(archive: Path) -> Files:
    """Path below the archive's one folder -> text, of the parts that are used."""
    wanted = re.compile(
        r"[^/]+/(CMakeLists\.txt|COPYING\.\w+|(?:providers/bnxt_re|kernel-headers/rdma|libibverbs|util|ccan)/[\w-]+\.[ch])"
    )
    out = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            found = wanted.fullmatch(member.name)
            if found and (file := tar.extractfile(member)):
                out[found[1]] = file.read().decode()
    return out


# Prints the original archive to stdout; its hash comes from the distribution's signed index.
_FETCH = r"""
set -euo pipefail
tar -x -C /run
chmod 0755 /run/rocstack/build/*
exec 3>&1 >&2
/run/rocstack/build/apt-update --source
version=$(apt-cache showsrc --only-source rdma-core | sed -n "s/^Version: \(@VERSION@-.*\)/\1/p" | sort -V | tail -n 1)
[ -n "$version" ] || { echo "the package index has no source of rdma-core @VERSION@"; exit 1; }
apt-get -qq --print-uris --only-source source "rdma-core=$version" | tr -d "'" >/tmp/uris
read -r uri _ _ hash < <(grep -F .orig.tar. /tmp/uris | grep -v -F .asc)
/run/rocstack/build/fetch "$uri" /tmp/orig "$hash"
cat /tmp/orig >&3
"""


def cached() -> Path:
    """Where rdma-core's original archive is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rocstack" / "standin" / f"rdma-core_{RDMA_CORE}.orig.tar"


def fetch_source(image: str | None = None) -> Path:
    """rdma-core's original archive, from the source packages of the default stack's base, by a container of it.

    Raises:
        Missing: no container engine or base image.
        CheckFailed: the distribution does not give the source.
    """
    target = cached()
    if target.exists():
        return target
    from rocstack.base import paths
    from rocstack.base.errors import CheckFailed
    from rocstack.edge import engine
    from rocstack.image import base_image
    from rocstack.settings import settings, site
    from rocstack.stack import stack

    chosen, _ = settings.load({}, os.environ, Path.cwd())
    here = site.of(chosen)
    image = image or base_image.ensure(engine.connect(), stack.load(STACK), chosen, lambda _: None).reference
    # Everything goes in through stdin: no folder is shared with the engine, and no process list shows the site.
    helpers = {name: (paths.images() / "build" / name).read_bytes() for name in ("site", "fetch", "apt-update")}
    files = {f"rocstack/build/{name}": data for name, data in helpers.items()}
    files["rocstack/site.env"] = here.env_file().encode()
    files["rocstack/ca.pem"] = Path(here.ca).read_bytes() if here.ca else b""
    command = ["docker", "run", "--rm", "-i", image, "bash", "-c", _FETCH.replace("@VERSION@", RDMA_CORE)]
    ran = subprocess.run(command, input=_tar(files), capture_output=True, check=False)
    if ran.returncode != 0:
        last = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CheckFailed(
            f"no source package of rdma-core {RDMA_CORE} to make the stand-in from: {''.join(last)}",
            code="no-standin-source",
            next_step="check that the distribution's mirror answers (setting apt_mirror), then run again",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    partial.write_bytes(ran.stdout)
    partial.replace(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="writes a stand-in for Broadcom's libbnxt_re-VERSION.tar.gz")
    parser.add_argument("folder", type=Path, help="where it goes")
    parser.add_argument("--kernel-abi", type=int, default=KERNEL_ABI, help="default: %(default)s")
    parser.add_argument("--version", default=VERSION, help="default: %(default)s")
    parser.add_argument("--bundle", action="store_true", help="inside a .zip, as the vendor delivers it")
    options = parser.parse_args()
    made = make_tarball(options.folder, options.version, options.kernel_abi)
    if options.bundle:
        tarball, made = made, make_bundle(made, options.folder)
        tarball.unlink()
    print(made)


if __name__ == "__main__":
    main()
