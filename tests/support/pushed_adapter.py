"""An adapter's files in a registry, as `oras push HOST/PATH:TAG adapter_config.json adapter_model.safetensors` does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
FILES = ("adapter_config.json", "adapter_model.safetensors")


def push(client: httpx.Client, path: str, tag: str, folder: Path, names: Iterable[str] = FILES, **change: Any) -> None:
    """`change` is of each file's entry in the manifest. `client` knows the registry's address, CA and login."""
    layers = []
    for name in names:
        data = (folder / name).read_bytes()
        notes = {"org.opencontainers.image.title": name}
        layers.append({**_blob(client, path, data, "application/octet-stream"), "annotations": notes, **change})
    empty = _blob(client, path, b"{}", "application/vnd.oci.empty.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": empty, "layers": layers}
    answer = client.put(
        f"/v2/{path}/manifests/{tag}", content=json.dumps(manifest), headers={"Content-Type": MANIFEST}
    )  # fmt: skip
    assert answer.status_code == 201, answer.text


def _blob(client: httpx.Client, path: str, data: bytes, kind: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    place = client.post(f"/v2/{path}/blobs/uploads/").headers["location"]
    answer = client.put(
        httpx.URL(place).copy_merge_params({"digest": digest}), content=data,
        headers={"Content-Type": "application/octet-stream"},
    )  # fmt: skip
    assert answer.status_code == 201, answer.text
    return {"mediaType": kind, "digest": digest, "size": len(data)}
