"""Measures how an image gets to the nodes, beside what is done by hand, in one run.

    python bench/deploy [--nodes 2,4] [--links 0,1000] [--image rocstack/worker:debian-13-tcp] [--out FILE]

Prints JSON. Each way starts with the image on this machine and ends with it on all workers, which are virtual nodes
with engines of their own; then once more after a change of the last layer, as a new trainer makes one. `--links` are
Mbit/s of every node's link in both directions, shaped with tc; 0 is what this machine gives. Bytes are counted at the
nodes' interfaces. Needs root, and the control image beside the worker's.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from testbed import Site, each, run, timed

from rocstack.deploy.plan import tls
from rocstack.registry.image_archive import ImageArchive
from rocstack.registry.local_image import LocalImage
from rocstack.registry.publish import publish
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository
from rocstack.registry.send_archive import LoadTarget, load

Result = dict[str, Any]
USER = "rocstack"
LIMITS = {"first_to_save_load": 0.5, "change_s": 5.0, "change_mb": 2.0}


class Bench:
    def __init__(self, site: Site, work: Path, image: str, control: str, change_kb: int) -> None:
        self.site, self.work = site, work
        self.client = docker.from_env(timeout=300)
        self.name = f"rocstack-bench-{secrets.token_hex(3)}"
        self.image = f"{self.name}:first"  # a build that goes on meanwhile doesn't change it
        run("docker", "tag", image, self.image)
        self.password = secrets.token_hex(16)
        self.registry = f"{site.address[site.head]}:5000"
        self.changed = f"{self.name}:changed"
        self.link = 0  # a repository each: what came over one link is not there for the next
        size = change_kb * 1000
        (work / "Dockerfile").write_text(f"FROM {self.image}\nRUN head -c {size} /dev/urandom >/opt/{self.name}\n")
        run("docker", "build", "-q", "-t", self.changed, str(work))
        self.start_seconds = timed(lambda: self._start_registry(control))[0]

    def close(self) -> None:
        subprocess.run(["docker", "rmi", self.changed, self.image], capture_output=True, check=False)
        self.client.close()

    def _start_registry(self, control: str) -> None:
        """As deploy does: the control image comes as an archive, the nodes trust a CA made for them."""
        site, now = self.site, datetime.now(UTC)
        ca, ca_key = tls.make_ca(now)
        key = tls.make_key()
        pem = tls.certificate(ca, ca_key, key, [site.address[site.head]], now)
        (self.work / "ca.pem").write_text(ca)
        with (
            LocalImage.find(self.client, control) as image,
            ImageArchive.make(image, control, folder=self.work) as archive,
        ):
            (done,) = load(archive, [LoadTarget(site.head, site.ssh(site.head))])
            assert not done.error, done.error
        accounts = f"bench:{self.password}\n"
        files = {"registry/server.pem": pem, "registry/server.key": key, "pulls/accounts": accounts}
        for path, text in (files | {"password": self.password}).items():
            site.on(
                site.head,
                "sh",
                "-c",
                f"umask 077; mkdir -p /etc/bench/registry /etc/bench/pulls; cat >/etc/bench/{path}",
                stdin=text.encode(),
            )
        flags = ["--network=host", "--volume=/etc/bench/registry:/etc/rocstack/registry:ro"]
        flags += ["--volume=/etc/bench/pulls:/etc/rocstack/pulls:ro"]
        flags += ["--volume=/etc/bench/password:/run/secrets/registry:ro", "--env=ROCSTACK_SERVICE=registry"]
        site.on(site.head, "docker", "run", "-d", "--name=bench-registry", *flags, control)
        token = base64.b64encode(f"bench:{self.password}".encode()).decode()
        login = json.dumps({"auths": {self.registry: {"auth": token}}}).encode()
        for worker in site.workers:
            site.on(
                worker,
                "sh",
                "-c",
                f"mkdir -p /etc/docker/certs.d/{self.registry}; cat >/etc/docker/certs.d/{self.registry}/ca.crt",
                stdin=ca.encode(),
            )
            site.on(worker, "sh", "-c", "umask 077; mkdir -p /root/.bench; cat >/root/.bench/config.json", stdin=login)

    def http(self, port: int) -> RegistryHttp:
        return RegistryHttp(
            self.registry, RegistryLogin(USER, self.password), self.work / "ca.pem", connect_to=("127.0.0.1", port)
        )

    def rocstack(self, image: str, tag: str) -> Result:
        """zstd layers to the head's registry through a tunnel, then all workers pull by digest at once."""

        def send() -> str:
            with self.site.tunnel(5001) as near, LocalImage.find(self.client, image) as found:
                return publish(found, Repository(self.http(near), f"rocstack-worker-{self.link}"), tag).reference

        publish_s, reference = timed(send)
        pull_s, _ = timed(lambda: each(lambda node: self.pull(node, reference), self.site.workers))
        return {"publish_s": publish_s, "pull_s": pull_s, "id": self.ids(reference)}

    def archive(self, image: str, tag: str) -> Result:
        """zstd archives over ssh, without what the nodes have."""
        have = frozenset(self.layers(self.image) if image != self.image else ())
        with LocalImage.find(self.client, image) as found, ExitStack() as stack:
            packed = ImageArchive.make(found, f"{self.name}:{tag}", have, folder=self.work)
            pack_s, archive = timed(lambda: stack.enter_context(packed))
            targets = [LoadTarget(node, self.site.ssh(node), have=have) for node in self.site.workers]
            load_s, done = timed(lambda: load(archive, targets))
        assert not [one.error for one in done if one.error], done
        return {"pack_s": pack_s, "load_s": load_s, "id": self.ids(f"{self.name}:{tag}")}

    def save_load(self, image: str, tag: str) -> Result:
        """`docker save | ssh NODE docker load`, a node after the other."""
        for node in self.site.workers:
            ssh = " ".join(self.site.ssh(node))
            run("bash", "-o", "pipefail", "-c", f"docker save {image} | {ssh} docker load -q")
        return {"id": self.ids(image)}

    def serial_pull(self, image: str, tag: str) -> Result:
        """`docker push` (gzip) to the same registry, then `docker pull` on a node after the other."""
        repository = f"by-hand-{self.link}"
        config = self.work / "docker"
        config.mkdir(exist_ok=True)
        with self.site.tunnel(5001) as port:
            near = f"127.0.0.1:{port}"
            token = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
            (config / "config.json").write_text(json.dumps({"auths": {near: {"auth": token}}}))
            run("docker", "tag", image, f"{near}/{repository}:{tag}")
            try:
                push_s, _ = timed(lambda: run("docker", "--config", config, "push", "-q", f"{near}/{repository}:{tag}"))
            finally:
                run("docker", "rmi", "-f", f"{near}/{repository}:{tag}")
        reference = f"{self.registry}/{repository}:{tag}"
        pull_s, _ = timed(lambda: [self.pull(node, reference) for node in self.site.workers])
        return {"publish_s": push_s, "pull_s": pull_s, "id": self.ids(reference)}

    def pull(self, node: str, reference: str) -> None:
        self.site.on(node, "docker", "--config", "/root/.bench", "pull", "-q", reference)

    def layers(self, image: str) -> list[str]:
        return list(self.client.images.get(image).attrs["RootFS"]["Layers"])

    def ids(self, reference: str) -> str:
        (found,) = set(
            each(
                lambda node: self.site.on(node, "docker", "image", "inspect", "-f", "{{.Id}}", reference),
                self.site.workers,
            )
        )
        return found

    def measure(self, way: Callable[[str, str], Result]) -> Result:
        """First ship, then a changed last layer; the workers are empty before."""
        self.site.empty()
        out: Result = {}
        for step, image in (("first", self.image), ("change", self.changed)):
            site = self.site
            before = [site.sent(site.head), site.received(site.head), *(site.received(node) for node in site.workers)]
            seconds, more = timed(lambda image=image, step=step: way(image, step))
            after = [site.sent(site.head), site.received(site.head), *(site.received(node) for node in site.workers)]
            assert more.pop("id") == self.client.images.get(image).id, "another image than was sent"
            sent, taken, *nodes = [b - a for a, b in zip(before, after, strict=True)]
            mb = {"head_egress_mb": sent, "head_ingress_mb": taken, "workers_ingress_mb": sum(nodes)}
            out[step] = {"s": seconds, **more, **{key: round(value / 1e6, 2) for key, value in mb.items()}}
        return out


def measured(bench: Bench, link: int, ways: list[str]) -> Result:
    bench.link = link
    bench.site.shape(link)
    found: Result = {}
    for way in ways:
        print(f"{len(bench.site.workers)} nodes, {link or 'no'} Mbit/s limit: {way} ...", file=sys.stderr, flush=True)
        found[way] = bench.measure(getattr(bench, way))
        print(json.dumps(found[way]), file=sys.stderr, flush=True)
    head = {"nodes": len(bench.site.workers), "link_mbit": link or None, "load": round(os.getloadavg()[0], 2)}
    return {**head, **found, **({"judged": judged(found)} if {"rocstack", "save_load"} <= {*ways} else {})}


def judged(ways: Result) -> Result:
    ours, hand = ways["rocstack"], ways["save_load"]
    found = {
        "first_to_save_load": round(ours["first"]["s"] / hand["first"]["s"], 3),
        "change_s": ours["change"]["s"],
        "change_mb": ours["change"]["workers_ingress_mb"],
    }
    return {key: {"value": value, "limit": LIMITS[key], "within": value <= LIMITS[key]} for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,4")
    parser.add_argument("--links", default="0,1000")
    parser.add_argument("--image", default="rocstack/worker:debian-13-tcp")
    parser.add_argument("--control", default="rocstack/control:debian-13-tcp")
    parser.add_argument("--ways", default="rocstack,archive,save_load,serial_pull")
    parser.add_argument(
        "--change-kb", type=int, default=300, help="size of the changed layer; the trainer's is this large"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: Result = {
        "command": " ".join(["python bench/deploy", *sys.argv[1:]]),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "virtual": True,
        "measured": [],
    }
    for nodes in map(int, args.nodes.split(",")):
        with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as folder:
            site = Site(Path(folder), nodes)
            try:
                bench = Bench(site, Path(folder), args.image, args.control, args.change_kb)
                try:
                    for link in map(int, args.links.split(",")):
                        result["measured"].append(measured(bench, link, args.ways.split(",")))
                finally:
                    bench.close()
            finally:
                site.close()
    result["load_after"] = round(os.getloadavg()[0], 2)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
