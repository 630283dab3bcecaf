"""Two virtual nodes with the default stack deployed to them, as a person would have them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from place import Outcome, Place

INVENTORY = Path(".rocstack/local/inventory.yml")
ANSWER = 60.0  # seconds for a command on a node


@dataclass(frozen=True)
class Deployed:
    """Whoever changes it brings it back: all tests of a session have the same one."""

    place: Place

    def run(self, *args: str, code: int = 0) -> Outcome:
        """A command that must end so."""
        done = self.place.run(*args)
        assert done.code == code, f"{args}: {done.code}\n{done.out}{done.err}"
        return done

    def json(self, *args: str, code: int = 0) -> Any:
        return self.run(*args, "--json", code=code).json

    def refused(self, *args: str) -> tuple[int, str]:
        """The exit code and the error's."""
        done = self.place.run(*args, "--json")
        return done.code, done.json["error"]["code"]

    def ssh(self, node: str, command: str, check: bool = True) -> str:
        config = self.place.folder / INVENTORY.with_name("ssh_config")
        line = ["ssh", "-F", str(config), node, command]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=ANSWER)
        assert not check or done.returncode == 0, f"{node}: {command}: {done.stderr}{done.stdout}"
        return done.stdout

    def slurm(self, command: str, check: bool = True) -> str:
        """In the controller's container."""
        return self.ssh("n1", f"docker exec rocstack-control {command}", check)

    def findings(self, code: int) -> list[tuple[str, str]]:
        """(node, what is wrong) as `status` has it."""
        return [(found["node"], found["code"]) for found in self.json("status", code=code)["findings"]]

    def jobs(self) -> dict[int, str]:
        """Job -> its state."""
        return {job["job_id"]: job["job_state"][0] for job in json.loads(self.slurm("squeue --json"))["jobs"]}


def deploy(place: Place) -> Deployed:
    (place.folder / "rocstack.yml").write_text(f"inventory: {INVENTORY}\n")
    made = Deployed(place)
    made.run("local", "up", "--nodes", "2")
    made.run("deploy")
    return made
