"""Hooks of mkdocs: the pages that stand at the top of the repository are pages of the site as well."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ABOVE = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds those pages; their links into docs/ lead to its pages."""
    top = Path(config.config_file_path).parent
    for name in ABOVE:
        text = (top / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links of pages to those above."""
    names = "|".join(map(re.escape, ABOVE))
    return re.sub(rf"\]\(\.\./({names})", r"](\1", markdown)
