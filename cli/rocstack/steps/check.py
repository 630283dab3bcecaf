"""Whatever people write, judged without a node, an engine or an image: settings, cluster, inventory, stack, overlay."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.cluster import checks
from rocstack.deploy.read import inventory as inventories
from rocstack.jobs import recipe as recipes
from rocstack.settings.settings import FILE, Settings, placed
from rocstack.steps.image_plan import plan_image
from rocstack.steps.options import RenderOptions
from rocstack.verify import thresholds


@dataclass(frozen=True)
class CheckedFiles:
    """What was read and is in order, and what is not there."""

    checked: tuple[str, ...]
    absent: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of the inventory

    def to_dict(self) -> dict[str, Any]:
        return {"ok": True, "checked": list(self.checked), "absent": list(self.absent), "warnings": list(self.warnings)}


def check(chosen: Settings, folder: Path | None = None) -> CheckedFiles:
    """
    Raises:
        BadInput: the first thing wrong, with its file and line.
    """
    here = folder or Path.cwd()
    path = Path(chosen.inventory).expanduser()
    warnings: tuple[str, ...] = ()
    with placed(here):
        if path.exists():
            found = inventories.load(path)
            inventories.refuse_doubtful(found)
            found.refuse_no_racks(chosen.cluster.ship.method)
            warnings = found.warnings
            workers = [host.name for host in found.workers]
            checks.check(chosen.cluster, workers=workers, groups=found.worker_groups, overlay=chosen.overlay_folder())
        recipes.recipes(chosen.overlay_folder())
        thresholds.load(chosen.overlay_folder())
        plan = plan_image(RenderOptions(), chosen, lambda text: None)
    plan.render()
    texts = {FILE: (here / FILE).exists(), str(path): path.exists()}
    checked = [name for name, there in texts.items() if there]
    checked += [f"stack {plan.resolved.stack.name}", f"NIC profile {plan.resolved.nic.name}", "Slurm's files"]
    checked += [f"overlay {chosen.overlay}"] if chosen.overlay else []
    return CheckedFiles(tuple(checked), tuple(name for name, there in texts.items() if not there), warnings)
