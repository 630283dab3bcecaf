"""The image that a plan will give, as far as the gate can know it beforehand: enough to refuse before building."""

from rocstack.nic.ways import ProviderPlan
from rocstack.node.image_facts import ImageFacts, ImageProvider
from rocstack.stack.component import NicProfile
from rocstack.stack.provider import ROOT


def planned(nic: NicProfile, plan: ProviderPlan) -> ImageFacts:
    """Without private ABIs, which are measured in the image: the gate finds it unfit or unknown, never fitting."""
    providers = tuple(
        ImageProvider(
            place=row.place,
            way=row.way,
            driver=str(nic.provider),
            path=f"{ROOT}/{row.place}/planned",
            version=row.version,
            private_abi=None,
            sha256=None,
            kernel_abi=row.supports or (None if row.kernel_abi is None else (row.kernel_abi, row.kernel_abi)),
        )
        for row in plan.rows
    )
    return ImageFacts("planned", nic.name, "worker", nic.modules, nic.pci, providers=providers if nic.provider else ())
