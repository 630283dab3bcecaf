"""Removes from a folder what dpkg's path-exclude / path-include rules would not have unpacked.

    python3 prune_tree.py RULES ROOT

The last matching rule wins and '*' matches '/', as in dpkg (dpkg(1), --path-exclude).
"""

import fnmatch
import os
import re
import sys


def main(rules_file: str, root: str) -> None:
    rules = []
    with open(rules_file) as lines:
        for line in lines:
            kind, _, glob = line.strip().partition("=")
            if kind in ("path-exclude", "path-include"):
                rules.append((kind == "path-exclude", re.compile(fnmatch.translate(glob)).match))
    freed = count = 0
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            path = os.path.join(folder, name)
            inside = "/" + os.path.relpath(path, root)
            drop = False
            for exclude, matches in rules:
                if matches(inside):
                    drop = exclude
            if drop:
                freed += os.lstat(path).st_size
                count += 1
                os.unlink(path)
        if folder != root and not os.listdir(folder):
            os.rmdir(folder)
    print(f"pruned {count} files, {freed / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
