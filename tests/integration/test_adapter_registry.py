"""Adapters in a real registry, with TLS and a password: pushed as oras does, served from there."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx
import pytest
import site_registry
import tiny_adapters as tiny
from pushed_adapter import FILES, push

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve.adapter_repository import AdapterRepository
from rocstack.serve.settings import RepositorySource

pytestmark = pytest.mark.engine
PATH = "adapters/tiny-llama"


def test_what_was_pushed_is_what_is_served(base: str, tmp_path: Path) -> None:
    ca = site_registry.certificate(tmp_path, "IP:127.0.0.1")
    with site_registry.running(base, tmp_path) as registry:
        (login := tmp_path / "login").write_text(f"{site_registry.USER}:{registry.password}\n")
        trust = ssl.create_default_context(cafile=ca)
        signed = (site_registry.USER, registry.password)
        with httpx.Client(base_url=f"https://{registry.host}", verify=trust, auth=signed) as client:
            for number in range(3):
                folder = tiny.adapter(tmp_path / f"poet-{number}", "tiny-llama", seed=number)
                push(client, PATH, folder.name, folder)
        url = f"https://{registry.host}/{PATH}"
        here = AdapterRepository(RepositorySource(repository=url, ca=str(ca), login=str(login)), 1 << 20)
        assert here.rescan() == 3
        for number in range(3):
            found = here.find(f"poet-{number}")
            assert found
            with here.opened(found) as files:
                weights = os.pread(files.weights, 1 << 20, 0)
                assert weights == (tmp_path / found.name / FILES[1]).read_bytes()
                assert files.stamp == here.stamp(found)
        stranger = AdapterRepository(RepositorySource(repository=url, ca=str(ca)), 1 << 20)
        with pytest.raises(CheckFailed, match="HTTP 401"):
            stranger.rescan()
        with pytest.raises(BadInput) as gone:
            here.stamp(found.__class__("none", None, url, ("none",)))
        assert gone.value.code == "adapter-gone"
        registry.stop()
        with pytest.raises(CheckFailed, match="doesn't answer"):
            here.rescan()
        assert len(here.names) == 3
        assert here.stamp(found)
