"""What of rocstack itself lies in the worker image: the node package, and the NIC profiles as data."""

import json
from dataclasses import asdict
from pathlib import Path

from rocstack import node
from rocstack.base import __version__
from rocstack.image.context import ContextFile
from rocstack.node.nic_settings import NicSettings
from rocstack.stack.component import NicProfile, TemplateLibrary, validate_head

FOLDER = "rootfs/worker/usr/local/lib/rocstack/python"
MAIN = "import sys\n\nfrom rocstack.node.node_command import main\n\nsys.exit(main(sys.argv[1:]))\n"


def files(nics: TemplateLibrary) -> dict[str, ContextFile]:
    """Their part of the context."""
    package = Path(node.__file__).parent
    own = {f"{FOLDER}/rocstack/node/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    heads = [validate_head(file, NicProfile) for file in nics.files.values()]
    data = [asdict(settings(head)) for head in sorted(heads, key=lambda head: head.name)]
    own[f"{FOLDER}/rocstack/__init__.py"] = f'__version__ = "{__version__}"\n'.encode()
    own[f"{FOLDER}/__main__.py"] = MAIN.encode()
    own[f"{FOLDER}/nics.json"] = (json.dumps(data, indent=1) + "\n").encode()
    return {path: ContextFile(data) for path, data in own.items()}


def settings(nic: NicProfile) -> NicSettings:
    """A NIC profile's head as the node package has it."""
    fields = {"modules", "pci", "provider", "dscp", "dscp_source", "env"}
    plugin = nic.plugin and {"name": nic.plugin.archive, "when": nic.plugin.when, "without": nic.plugin.without}
    return NicSettings.from_dict({"nic": nic.name, **nic.model_dump(include=fields), "plugin": plugin})
