"""Writes the image's manifest: what is in it, how large each part is, and what the smoke test saw.

    python3 manifest.py --root TREE --base TREE [--extra TREE] --facts FACTS.json --smoke DIR --out FILE

Sizes are apparent bytes of the files that are there. A package belongs to the first component whose requested
packages need it (the Depends closure of dpkg's status file); a wheel to the component that names it.
"""

import argparse
import json
import os
import re
import stat
from pathlib import Path


def read_status(root: Path) -> dict[str, dict[str, str]]:
    packages = {}
    for block in (root / "var/lib/dpkg/status").read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): ?(.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields
    return packages


def sources(packages: dict[str, dict[str, str]]) -> dict[str, str]:
    """The source package of those that have another name or version than it: `name`, or `name@version`. Debian's and
    Ubuntu's security data is by source package."""
    found = {}
    for name, fields in sorted(packages.items()):
        source = re.fullmatch(r"(\S+)(?: \((\S+)\))?", fields.get("Source", ""))
        if source:
            found[name] = f"{source[1]}@{source[2]}" if source[2] else source[1]
    return found


def closure(wanted: list[str], packages: dict[str, dict[str, str]], providers: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        for real in [name] if name in packages else providers.get(name, []):
            if real not in seen:
                seen.add(real)
                needs = packages[real].get("Depends", "") + "," + packages[real].get("Pre-Depends", "")
                queue += [re.split(r"[ (:]", word.strip())[0] for word in re.split(r"[,|]", needs) if word.strip()]
    return seen


def tree_sizes(root: Path) -> dict[str, int]:
    """Path inside the image -> bytes, of every regular file (a hard link counts once)."""
    sizes: dict[str, int] = {}
    inodes: set[tuple[int, int]] = set()
    stack = [str(root)]
    while stack:
        folder = stack.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    stack.append(entry.path)
                elif stat.S_ISREG(info.st_mode) and (info.st_dev, info.st_ino) not in inodes:
                    inodes.add((info.st_dev, info.st_ino))
                    sizes[entry.path[len(str(root)) :]] = info.st_size
    return sizes


def package_files(root: Path, package: str) -> list[str]:
    info = root / "var/lib/dpkg/info"
    for name in [f"{package}.list", *(p.name for p in info.glob(f"{package}:*.list"))]:
        file = info / name
        if file.exists():
            return file.read_text(errors="replace").splitlines()
    return []


def wheel_files(root: Path, site: str) -> dict[str, tuple[str, list[str]]]:
    """Distribution name -> (version, its files) for every wheel in `site`."""
    found = {}
    for record in (root / site.lstrip("/")).glob("*.dist-info/RECORD"):
        name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
        paths = [line.rsplit(",", 2)[0] for line in record.read_text().splitlines()]
        found[re.sub(r"[-_.]+", "-", name).lower()] = (
            version,
            [os.path.normpath(f"{site}/{p}") for p in paths],
        )
    return found


def read_smoke(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, list[str]]]]:
    facts: dict[str, str] = {}
    versions: dict[str, str] = {}
    results: dict[str, dict[str, list[str]]] = {}
    for file in sorted(folder.rglob("*.tsv")):
        for line in file.read_text().splitlines():
            kind, name, text = line.split("\t", 2)
            entry = results.setdefault(name, {"ok": [], "skipped": []})
            if kind == "version":
                versions[name] = text
            elif kind == "fact":
                key, _, value = text.partition("=")
                facts[key] = value
            elif text not in entry[kind]:  # what was tested twice
                entry[kind].append(text)
    return versions, facts, results


def merged_usr(path: str, root: Path) -> str:
    """dpkg may list /lib/x where the file lies in /usr/lib/x."""
    top = path.split("/", 2)[1] if path.count("/") > 1 else ""
    return f"/usr{path}" if top in ("bin", "sbin", "lib", "lib64") and (root / top).is_symlink() else path


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("--root", "--base", "--facts", "--smoke", "--out"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--extra", type=Path)
    args = parser.parse_args()
    facts = json.loads(args.facts.read_text())
    packages = read_status(args.root)
    provided_by: dict[str, list[str]] = {}
    for name, fields in packages.items():
        for provided in fields.get("Provides", "").split(","):
            if provided.strip():
                provided_by.setdefault(re.split(r"[ (]", provided.strip())[0], []).append(name)

    owner: dict[str, str] = dict.fromkeys(read_status(args.base), "base")
    for component, wanted in facts["packages"].items():
        for package in sorted(closure(wanted, packages, provided_by)):
            owner.setdefault(package, component)

    sizes = tree_sizes(args.root)
    extra = tree_sizes(args.extra) if args.extra else {}
    by_path: dict[str, str] = {}
    for package in packages:
        for path in package_files(args.root, package):
            by_path[merged_usr(path, args.root)] = package
    wheels = wheel_files(args.root, facts["site_packages"])
    for name, (_, files) in wheels.items():
        by_path.update(dict.fromkeys(files, f"{name} (wheel)"))
        owner[f"{name} (wheel)"] = facts["wheels"].get(name, "trainer")

    per_package: dict[str, int] = {}
    per_component: dict[str, int] = {}
    for path, size in sizes.items():
        source = path
        if "/__pycache__/" in path:  # byte code belongs to the module it was compiled from
            source = re.sub(r"__pycache__/([^/]*)\.cpython-[^/]*\.pyc$", r"\1.py", path)
        built = next((c for c, prefix in facts["prefixes"].items() if path.startswith(prefix)), None)
        package = by_path.get(source, "")
        component = built or owner.get(package, "base")
        per_package[package or "(no package)"] = per_package.get(package or "(no package)", 0) + size
        per_component[component] = per_component.get(component, 0) + size
    if extra:
        per_component["trainer"] = per_component.get("trainer", 0) + sum(extra.values())

    versions, measured, smoke = read_smoke(args.smoke)
    if "nic" in facts:
        import providers  # needs pyelftools, which only the build has

        measured |= providers.facts(args.root, facts["nic"], {n: f["Version"] for n, f in packages.items()}, measured)
    manifest = {
        **facts["identity"],
        "versions": dict(sorted({**facts.get("read", {}), **versions}.items())),
        "facts": measured,
        "size": {
            "bytes": sum(sizes.values()) + sum(extra.values()),
            "components": dict(sorted(per_component.items(), key=lambda item: -item[1])),
            "largest_packages": dict(sorted(per_package.items(), key=lambda item: -item[1])[:10]),
            "largest_files": dict(sorted(sizes.items(), key=lambda item: -item[1])[:10]),
        },
        "smoke": smoke,
        "packages": {n: packages[n]["Version"] for n in sorted(packages)},
        "sources": sources(packages),
        "wheels": {n: v for n, (v, _) in sorted(wheels.items())},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
