"""Reads the ABIs of the NIC's provider libraries and of libibverbs in the finished tree: facts for the gate."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from rocstack.nic import elf

ROOT = "/opt/rocstack/nic"
NEWER = "/opt/rdma-core/lib"  # where a newer rdma-core lies, before the distribution's


def resolved(root: Path, path: str) -> Path:
    """A path of the image, its links followed as if `root` were /."""
    current = ""
    todo = path.strip("/").split("/")
    for _ in range(1000):
        if not todo:
            break
        name, *todo = todo
        if name == "..":
            current = os.path.dirname(current)
        elif name not in ("", "."):
            real = root / f"{current}/{name}".lstrip("/")
            if real.is_symlink():
                target = os.readlink(real)
                current = "" if target.startswith("/") else current
                todo = [*target.strip("/").split("/"), *todo]
            else:
                current += f"/{name}"
    return root / current.lstrip("/")


def libibverbs(root: Path) -> str | None:
    """The one that the loader takes."""
    for folder in (NEWER, *(f"/{p.relative_to(root)}" for p in sorted((root / "usr/lib").glob("*-linux-gnu")))):
        if resolved(root, f"{folder}/libibverbs.so.1").is_file():
            return f"{folder}/libibverbs.so.1"
    return None


def facts(root: Path, nic: dict[str, Any], packages: dict[str, str], measured: dict[str, str]) -> dict[str, str]:
    """Labels of the NIC, without their prefix. What can't be read is left out, with the reason printed; what
    libibverbs itself said (`measured`) must agree with what was read."""
    own = {"nic.modules": ",".join(nic["modules"]), "nic.pci": ",".join(nic["pci"])}
    out = {**{label: value for label, value in own.items() if value}, **plugin(root, nic["plugin"])}
    library = libibverbs(root)
    if library is None:
        return out
    data = resolved(root, library).read_bytes()
    pattern = re.search(rb"/[ -~]{0,200}/lib%s-rdmav(\d{1,4})\.so", data)
    verbs = elf.read_libibverbs(data)
    out["verbs.sha256"] = verbs.sha256
    if verbs.private_abi is not None:
        out["verbs.private-abi"] = str(verbs.private_abi)
        if pattern and int(pattern[1]) != verbs.private_abi:
            raise SystemExit(f"{library} has private ABI {verbs.private_abi}, and looks for {pattern[0].decode()}")
    if not nic["driver"]:
        return out
    rows = [row(root, nic, each, pattern[0].decode() if pattern else "", packages) for each in nic["providers"]]
    out["nic.cards"] = json.dumps(nic["cards"], separators=(",", ":"))
    out["nic.providers"] = json.dumps(rows, separators=(",", ":"))
    used = pattern[0].decode().replace("%s", nic["driver"]) if pattern else ""
    if rows[0]["path"] and resolved(root, used).read_bytes() != resolved(root, rows[0]["path"]).read_bytes():
        raise SystemExit(f"{used} is not {rows[0]['path']}")
    for each in rows:
        said, found = measured.pop(f"nic.loader-abi.{each['place']}", None), each["kernel_abi"]
        if said and found and said != f"{found[0]}-{found[1]}":
            raise SystemExit(f"{each['path']}: kernel ABI {found[0]}-{found[1]} by its file, {said} by libibverbs")
    ranges = [f"{low}-{high}" for low, high in filter(None, (row["kernel_abi"] for row in rows))]
    if ranges and len(ranges) == len(rows):
        out["nic.kernel-abi"] = ",".join(ranges)
    if len(rows) == 1:
        for label, key in (("provider", "path"), ("provider-version", "version"), ("provider-sha256", "sha256")):
            if rows[0][key]:
                out[f"nic.{label}"] = rows[0][key]
    return out


def plugin(root: Path, found: dict[str, str] | None) -> dict[str, str]:
    """RCCL's plugin, and of which libfabric it needs a symbol version, for the host's own must have it."""
    if not found:
        return {}
    data = (root / f"{ROOT}/plugin/{found['library']}".lstrip("/")).read_bytes()
    out = {"nic.plugin": found["name"], "nic.plugin-version": found["version"]}
    out["nic.plugin-sha256"] = hashlib.sha256(data).hexdigest()
    needed = elf.newest(data, "FABRIC")
    return {**out, "nic.plugin-fabric": needed} if needed else out


def row(
    root: Path, nic: dict[str, Any], provider: dict[str, Any], pattern: str, packages: dict[str, str]
) -> dict[str, Any]:
    own = pattern.replace("%s", nic["driver"])
    place = f"{ROOT}/{provider['place']}"
    path = f"{place}/{os.path.basename(own)}" if (root / place.lstrip("/")).exists() else own
    found: dict[str, Any] = {
        **provider,
        "driver": nic["driver"],
        "path": path,
        "private_abi": None,
        "kernel_abi": None,
        "sha256": None,
    }
    package = found.pop("package", None)
    if provider["way"] == "host":
        return {**found, "path": None}
    if provider["way"] in ("source", "package") and path == own:
        raise SystemExit(f"no {place}, where the provider by way {provider['way']} should be")
    file = resolved(root, path)
    abi = elf.read_provider(file.read_bytes())
    for reason in abi.reasons:
        print(f"{path}: {reason}")
    version = packages.get(package) if package else provider["version"] or packages.get("ibverbs-providers")
    return {
        **found,
        "version": version,
        "private_abi": abi.private_abi,
        "kernel_abi": abi.kernel_abi,
        "sha256": abi.sha256,
    }
