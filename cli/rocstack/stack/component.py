"""Components and NIC profiles: template files whose head (YAML) says what they are and whose blocks say
how they are built, what reaches the runtime stage, how their version is read and how they are smoke-tested."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, model_validator

from rocstack.base import document, environment, paths
from rocstack.base.errors import BadInput, Where, hinted
from rocstack.base.words import (
    AtKey,
    Condition,
    Driver,
    EnvName,
    EnvValue,
    FileName,
    FilePath,
    Glob,
    KernelAbi,
    Line,
    Name,
    Package,
    PackageOfStack,
    PciId,
    Value,
    Version,
    word,
)
from rocstack.stack.stack import FURTHER as FURTHER
from rocstack.stack.stack import ROLES as ROLES
from rocstack.stack.stack import Method
from rocstack.stack.stack import Role as Role

LISTS = ("packages", "worker_packages", "control_packages", "builder_packages", "compiler_packages")
FENCE = "---\n"


class Packages(Value):
    """Package lists of one method. `packages` reach both roles, the others one role or the builder stage; of ROCm,
    `compiler_packages` those of what compiles for GPUs."""

    packages: tuple[PackageOfStack, ...] = ()
    worker_packages: tuple[PackageOfStack, ...] = ()
    control_packages: tuple[PackageOfStack, ...] = ()
    builder_packages: tuple[PackageOfStack, ...] = ()
    compiler_packages: tuple[PackageOfStack, ...] = ()

    def of_role(self, role: Role) -> tuple[str, ...]:
        """What one role alone has."""
        return {"worker": self.worker_packages, "control": self.control_packages}.get(role, ())


class Component(Value):
    name: Name
    about: Line
    roles: tuple[Role, ...] = ("worker",)
    needs: tuple[Name, ...] = ()
    after: tuple[Name, ...] = ()  # what it is built with where the stack has it
    methods: dict[Method, Packages]
    exclude: tuple[Glob, ...] = ()
    below_nic: bool = False  # its smoke test knows no NIC: the worker's is made once for all NICs of a stack


def _is_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"'{text}' is no condition on versions, such as >=40 or >=40,<60") from None
    return text


Versions = Annotated[Line, AfterValidator(_is_specifier)]
FACTS = ("hca", "plugin")  # in conditions, beside components: the node's RDMA ports, RCCL's plugin in the image


class Way(Value):
    """One way a NIC's userspace provider gets into the image."""

    about: Line = ""
    packages: tuple[Package, ...] = ()
    kernel_abi: KernelAbi | None = None  # the provider's range where it is known beforehand, "min-max"
    source: Line | None = None  # where that range is written
    needs: dict[Name, Versions] = {}  # component -> versions with which this way works
    release: Literal["driver", "named"] | None = None  # the host driver's own, or one that the user names
    archive: Literal["release", "rdma-core"] | None = None  # source that the user gives: the vendor's, or rdma-core's
    asked: bool = False  # only by name: never chosen by itself


class NicVariable(Value):
    """One environment variable of a NIC, why it is set and who says so."""

    name: EnvName
    value: EnvValue
    why: Line
    source: Line
    when: Condition | None = None  # a component and its versions: "rocm>=7.2.1"


class CompanionArchive(Value):
    """A second source archive that a plugin is compiled with, in the folder of the first."""

    archive: Name  # rccl-rocm: it is rccl-rocm-VERSION.tar.gz
    version: Name  # a component of the stack: the archive's version is its version


class RcclPlugin(Value):
    """RCCL's network plugin for a NIC, compiled in the image from the source that the user gives."""

    archive: Name  # aws-ofi-nccl: it is aws-ofi-nccl-VERSION.tar.gz
    library: FileName  # what is built, and RCCL loads
    project: Line  # where the source is published
    holds: tuple[FilePath, ...] = ()  # files that must be in it
    notes: FilePath | None = None  # of them, the one whose first heading with a version is the source's own
    when: Condition | None = None  # components and versions for which RCCL needs it: "rocm<7.2.1"
    instead: Line = ""  # what there is where it is not needed
    without: Line  # what happens where it is needed and not in the image
    releases: dict[Version, Condition] = {}  # release -> components and versions that it is made for; empty: all
    beside: CompanionArchive | None = None
    packages: tuple[Package, ...] = ()  # of the worker
    source: Line  # who says so


class CardNeed(Value):
    """A card that rdma-core's own provider drives only from a release on."""

    rdma_core: Annotated[str, word(r"[0-9]{1,3}(\.[0-9]{1,3})?", "a release of rdma-core such as 50 or 50.1")]
    source: Line


class CardFirmware(Value):
    """Firmware of a card that is known to work where GPUs start the transfers themselves (IBGDA)."""

    known_good: Annotated[tuple[Version, ...], Field(min_length=1)]
    source: Line


class NicProfile(Value):
    name: Name
    about: Line
    hardware: tuple[Line, ...] = ()
    pci: tuple[PciId, ...] = ()
    cards: dict[PciId, CardNeed] = {}  # those of `pci` that need a newer rdma-core than others
    firmware: dict[PciId, CardFirmware] = {}
    modules: tuple[Driver, ...] = ()  # kernel modules on the host; the last one makes the RDMA devices
    provider: Driver | None = None  # the libibverbs driver's name
    ways: dict[Name, Way] = Field(min_length=1)
    dscp: int | None = Field(None, ge=0, le=63)  # of RoCE traffic, as the card's own QoS defaults have it
    dscp_source: Line | None = None
    env: tuple[NicVariable, ...] = ()
    plugin: RcclPlugin | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for field, cards in (("cards", self.cards), ("firmware", self.firmware)):
            for card in cards:
                if card not in self.pci:
                    raise AtKey((field, card), f"'{card}' is not among `pci`{hinted(card, self.pci)}")
        for index, variable in enumerate(self.env):
            if why := environment.misspelt(variable.name):
                raise AtKey(("env", index, "name"), why)
            for before in self.env[:index]:
                if before.name == variable.name and before.when in (None, variable.when):
                    raise AtKey(("env", index, "name"), f"{variable.name} is set above already, so this is never taken")
        return self

    @property
    def card_needs(self) -> dict[str, str]:
        """PCI id -> the release of rdma-core that it needs."""
        return {card: need.rdma_core for card, need in self.cards.items()}


Head = TypeVar("Head", Component, NicProfile)


@dataclass(frozen=True)
class TemplateFile:
    """A template file taken apart: its head as a document, its body, and the body's first line."""

    name: str
    path: Path
    head: document.Document
    body: str
    body_line: int

    @property
    def label(self) -> str:
        """How messages and generated comments call it: folder/file."""
        return f"{self.path.parent.name}/{self.path.name}"


def read_template(path: Path) -> TemplateFile:
    """Splits `---` head `---` body; a file without a head has an empty one (block overrides)."""
    name = path.name.removesuffix(".j2").removesuffix(".sbatch")
    text = document.read_text(path, code="bad-template")
    if not text.startswith(FENCE):
        return TemplateFile(name, path, document.Document(str(path), {}), text, 1)
    head, fence, body = text[len(FENCE) :].partition("\n" + FENCE)
    if not fence:
        raise BadInput.of("open-head", Where(str(path), 1))
    return TemplateFile(name, path, document.parse(head, str(path), first_line=2), body, head.count("\n") + 4)


def validate_head(file: TemplateFile, model: type[Head]) -> Head:
    return file.head.validate(model, extra={"name": file.name})


@dataclass(frozen=True)
class TemplateLibrary:
    """All template files of one kind, ours and the user's; a user's file with a head adds or replaces,
    one without a head overrides blocks."""

    kind: str
    files: dict[str, TemplateFile]
    overrides: dict[str, TemplateFile]

    def get(self, name: str, where: Where | None = None) -> TemplateFile:
        if name not in self.files:
            hint = hinted(name, self.files)
            raise BadInput.of("unknown-nic" if self.kind == "nic" else "unknown-component", where, name=name, hint=hint)
        return self.files[name]


def library(kind: Literal["components", "nic", "slurm", "recipes"], overlay: Path | None = None) -> TemplateLibrary:
    files = {file.name: file for file in map(read_template, sorted((paths.templates() / kind).glob("*.j2")))}
    overrides: dict[str, TemplateFile] = {}
    for path in sorted((overlay / kind).glob("*.j2")) if overlay else []:
        # A stranger's may be a link to this machine's keys, which would stand in an image or in a job's script.
        if not any(path.resolve().is_relative_to(folder.resolve()) for folder in (path.parent, path.parents[1])):
            raise BadInput.of("overlay-leads-out", path, file=path.name)
        file = read_template(path)
        _refuse_misspelt_variables(file)
        if file.head.data:
            files[file.name] = file
        elif file.name in files:
            overrides[file.name] = file
        else:
            hint = hinted(file.name, files)
            raise BadInput.of("override-of-no-template", Where(str(path), 1), file=path.name, hint=hint)
    return TemplateLibrary(kind, files, overrides)


def _refuse_misspelt_variables(file: TemplateFile) -> None:
    for number, why in environment.misspelt_in(file.body):
        raise BadInput.of("misspelt-env", Where(str(file.path), file.body_line + number - 1), why=why)


def refuse_bad_heads(overlay: Path | None, components: TemplateLibrary, nics: TemplateLibrary) -> None:
    """Of the overlay's own files, also of those that nothing takes now.

    Raises:
        BadInput: one is wrong.
    """
    for file in components.files.values():
        if overlay in file.path.parents:
            validate_head(file, Component)
    for file in nics.files.values():
        if overlay in file.path.parents:
            validate_head(file, NicProfile)


def nic_profiles(overlay: Path | None = None) -> tuple[NicProfile, ...]:
    """The heads of all NIC profiles, with those of the overlay.

    Raises:
        BadInput: one is wrong.
    """
    return tuple(validate_head(file, NicProfile) for file in library("nic", overlay).files.values())
