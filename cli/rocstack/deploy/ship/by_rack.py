"""Fills the racks' registries with an image, and names those from which nodes can pull afterwards."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rocstack.base.image_names import id_tag
from rocstack.deploy.nodes.answers import CopyAnswer
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import RegistrySpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan.desired import USER, DesiredCluster
from rocstack.deploy.plan.prepare import PreparedDeploy
from rocstack.deploy.read.facts import push_port
from rocstack.deploy.read.inventory import RackRegistry
from rocstack.deploy.ship.by_registry import account, home

Copy = tuple[str, str]  # from registry to registry (HOST:PORT), made on the host of the second


def fill(
    prepared: PreparedDeploy, image: Image, lacking: Collection[str], node_runs: NodeRuns, events: DeployEvents
) -> dict[str, str]:
    """Node -> HOST:PORT to pull from. A rack whose registry can't be filled pulls from where the image was published.

    Raises:
        Missing: as `account`.
    """
    desired = prepared.desired
    assert desired is not None
    origin = home(desired)
    mirrors = [mirror for mirror in desired.mirrors if set(mirror.serves) & set(lacking)]
    filling = _RackFill(prepared, desired, image, node_runs, events, {each.registry: each for each in mirrors})
    have = [origin, *filling.waves(origin, filling.started()), *filling.of_site(origin)]
    sources = {name: each.registry for each in mirrors if each.registry in have for name in each.serves}
    return {name: sources.get(name, origin) for name in lacking}


@dataclass
class _RackFill:
    prepared: PreparedDeploy
    desired: DesiredCluster
    image: Image
    node_runs: NodeRuns
    events: DeployEvents
    mirrors: Mapping[str, RackRegistry]

    def started(self) -> list[str]:
        """Those of our nodes' registries that run."""
        ours = {each.node: each.registry for each in self.mirrors.values() if each.node}
        node_specs = self.prepared.node_specs
        for node in ours:
            if node not in node_specs:
                self._left(ours[node], "its node is not fit")
        parts = {node: node_specs[node].part(("registry",)) for node in ours if node in node_specs}
        runs = self.node_runs.run("start.yml", parts)
        for node, run in runs.items():
            if run.state != "ok":
                self._left(ours[node], run.reason)
        return [ours[node] for node, run in runs.items() if run.state == "ok"]

    def waves(self, origin: str, registries: Sequence[str]) -> list[str]:
        """Each copies for itself, from one that has it, so that 1, 3, 7, 15 have it after 1, 2, 3, 4 waves.

        A mirror that fetches on demand would hand each further request on while its first fetch lasts (measured: 4.3
        copies left the control node for 4 nodes).
        """
        left, have = list(registries), [origin]
        while left:
            wave = list(zip(have, left, strict=False))
            have += self._copy({self.mirrors[target].node or "": [(source, target)] for source, target in wave})
            left = left[len(wave) :]
        return have[1:]

    def of_site(self, origin: str) -> list[str]:
        """We are on no host of theirs: the control node copies to them."""
        copies = [(origin, each.registry) for each in self.mirrors.values() if not each.node]
        return self._copy({self.desired.inventory.control.name: copies}) if copies else []

    def _copy(self, by_node: Mapping[str, Sequence[Copy]]) -> list[str]:
        """The registries that have it then."""
        specs = {node: self._copy_spec(node, copies) for node, copies in by_node.items()}
        done = []
        for node, run in self.node_runs.send("registry-copy.yml", specs).items():
            answer = run.answer("Copy", CopyAnswer)
            rows = answer.copies if answer else ()
            errors = {row.target.partition("/")[0]: row.error for row in rows}
            for _, target in by_node[node]:
                error = errors.get(self._into(target).address, run.reason or "its node reported nothing about it")
                if error:
                    self._left(target, error)
                else:
                    done.append(target)
            if rows and not any(errors.values()):
                seconds = sum(row.seconds for row in rows)
                self.events.end(
                    node, f"{', '.join(target for _, target in by_node[node])} has the image ({seconds:.1f} s)"
                )
        return done

    def _copy_spec(self, node: str, copies: Sequence[Copy]) -> dict[str, object]:
        path, _, digest = (self.image.reference or "").partition("/")[2].partition("@")
        about = {"digest": digest, "tag": id_tag(self.image.id)}
        into = {there: self._into(there) for _, there in copies}
        sources = sorted({here for here, _ in copies})
        logins = [*(account(self.desired, here, node) for here in sources), *into.values()]
        return {
            "image": self.prepared.images["control"].id,
            "copies": [
                {"source": f"{here}/{path}", "target": f"{into[there].address}/{path}", **about}
                for here, there in copies
            ],
            "logins": [
                {"host": each.address, "user": each.user, "password": each.password, "ca": each.ca} for each in logins
            ],
        }

    def _into(self, registry: str) -> RegistrySpec:
        """Where its host writes into it, and as whom: one of ours takes pushes on loopback only."""
        mirror = self.mirrors[registry]
        if not mirror.node:
            return account(self.desired, registry, self.desired.inventory.control.name)
        keys = self.desired.keys
        end = f"127.0.0.1:{push_port(mirror.port)}"
        return RegistrySpec(end, USER, keys.rack_password(mirror.node), keys.registry_ca)

    def _left(self, registry: str, reason: str) -> None:
        nodes = ", ".join(self.mirrors[registry].serves)
        self.events.say(f"{registry} can't be used, {nodes} pull from {home(self.desired)}: {reason}")
