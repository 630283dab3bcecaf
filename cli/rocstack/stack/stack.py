"""The stack: a named, complete choice of components and versions on one base OS."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, hinted, nearest
from rocstack.base.words import (
    AtKey,
    Extra,
    FileName,
    FilePath,
    Gfx,
    Glob,
    ImageRef,
    Line,
    Name,
    Option,
    Origin,
    Package,
    PackageGlob,
    PlainUrl,
    Sha256,
    Suite,
    Value,
    Version,
)
from rocstack.stack import coherence, gpus

Method = Literal["apt", "amd", "amdrocm", "source", "wheel", "own", "base"]  # base: the base image has it already
Framework = Literal["pytorch", "jax", "maxtext"]
OwnRole = Literal["worker", "control"]
Role = Literal[OwnRole, "service"]
ROLES: tuple[OwnRole, ...] = ("worker", "control")  # without being asked for
FURTHER: tuple[Role, ...] = ("service",)  # a stack's `further` images
HOME = "debian-13"  # the stack that has all of them
UNREAD = "0"  # a version that only the finished image tells


class Bootstrap(Value):
    """How mmdebstrap makes the base where no registry answers."""

    suite: Suite
    components: tuple[Suite, ...] = ("main",)
    distribution: Literal["debian", "ubuntu"] = "debian"


class AptSuite(Value):
    """A further suite of the distribution's own archive. With `packages`, these alone are taken from it."""

    suite: Suite  # as its Release file calls it: unstable, not sid
    components: tuple[Suite, ...] = ("main",)
    priority: int = Field(500, ge=1, le=1001)  # apt's own is 500: among suites of one priority the newest version wins
    packages: tuple[PackageGlob, ...] = ()


class StackBase(Value):
    image: ImageRef
    os: Name
    bootstrap: Bootstrap | None = None
    suites: tuple[AptSuite, ...] = ()
    check_valid_until: bool = True  # False: a package index past its Valid-Until is taken, and the build says so


class AptRepository(Value):
    """A foreign apt repository, pinned over the distribution's own packages."""

    name: Name
    uri: PlainUrl
    suite: Suite
    components: tuple[Suite, ...] = ("main",)
    key: PlainUrl
    key_sha256: Sha256 | None = None
    origin: Origin
    priority: int = Field(600, ge=1, le=1001)


class SourceArchive(Value):
    """An archive that a component's source is unpacked from, as its project publishes it."""

    url: PlainUrl
    sha256: Sha256 | None = None  # where it is missing, the lock supplies it
    archive: FileName | None = None  # its name in a folder of sources; default: the end of the URL
    into: FilePath | None = None  # the folder of the component's source that it belongs into; default: it is the source

    @property
    def file(self) -> str:
        """What it is called in a folder of sources."""
        return self.archive or self.url.partition("?")[0].rstrip("/").rpartition("/")[2]


class ComponentChoice(Value):
    """One component as this stack has it: by which method, at which version."""

    method: Method
    version: Version
    source: Package | None = None  # a distribution's source package (deb-src)
    url: PlainUrl | None = None  # or an upstream archive
    sha256: Sha256 | None = None  # of the archive or the .dsc; where it is missing, the lock supplies it
    archive: FileName | None = None  # the archive's name in a folder of sources; default: the end of the URL
    beside: tuple[SourceArchive, ...] = ()  # archives that belong into the source, which a release has and a tag lacks
    index: PlainUrl | None = None  # a wheel index beside the default one
    extras: tuple[Extra, ...] = ()  # of the wheel; with GFX one for each target of the stack
    options: tuple[Option, ...] = ()  # configure options appended to the component's own
    pmix: Version | None = None  # the PMIx it is built against, where the version alone doesn't say
    packages: tuple[Package, ...] = ()  # what the worker role needs with this choice, beyond the method's own
    builder_packages: tuple[Package, ...] = ()  # and what is needed to build it, or to build against it
    without: tuple[Package, ...] = ()  # packages of the method's own that it does without

    @model_validator(mode="after")
    def _origin(self) -> Self:
        if self.method == "source" and (self.source is None) == (self.url is None):
            raise ValueError("method 'source' needs either 'source' (a source package) or 'url' (an archive)")
        if self.sha256 and self.method != "source":
            raise ValueError("'sha256' is of a source; this method has none")
        if (self.archive or self.beside) and not self.url:
            raise ValueError("'archive' and 'beside' are of a source with 'url'")
        if not all(each.into for each in self.beside):
            raise ValueError("an archive 'beside' needs 'into', the folder that it is unpacked to")
        if self.method == "base" and (self.index or self.options):
            raise ValueError("method 'base' takes the component as it is; 'index' and 'options' are of other methods")
        if self.extras and self.method != "wheel":
            raise ValueError("'extras' are of a wheel; this method has none")
        return self

    @property
    def archives(self) -> tuple[SourceArchive, ...]:
        """All upstream archives: the source itself and those beside it."""
        own = SourceArchive(url=self.url, sha256=self.sha256, archive=self.archive) if self.url else None
        return (own, *self.beside) if own else ()


class StackFact(Value):
    """A statement of the vendor's about this stack, and where it is written."""

    says: Line
    source: Line


def _known(gfx: str) -> str:
    if complaint := gpus.complaint(gfx):
        raise ValueError(complaint)
    return gfx


GfxTargets = Annotated[tuple[Annotated[Gfx, AfterValidator(_known)], ...], Field(min_length=1)]


class FurtherImage(Value):
    """An image that is built only when it is asked for: of these components alone, on the stack's base. It shares
    nothing else with the other images, so that neither changes because of the other."""

    components: dict[Name, ComponentChoice] = {}  # beside those of the stack that its layers name
    layers: tuple[tuple[Name, ...], ...] = Field(min_length=1)
    wheels: dict[Name, Version] = {}
    disk_mb: int = Field(gt=0)  # free space that building it needs


class Stack(Value):
    name: Name
    about: Line
    base: StackBase
    python: Version
    gfx: GfxTargets
    gfx_also: tuple[Annotated[Gfx, AfterValidator(_known)], ...] = ()  # what it can be built for instead, or besides
    framework: Framework = "pytorch"  # the component that trains on the GPUs: it must be built for ROCm
    components: dict[Name, ComponentChoice]
    layers: tuple[tuple[Name, ...], ...]
    repositories: tuple[AptRepository, ...] = ()
    wheels: dict[Name, Version] = {}
    provided: tuple[Name, ...] = ()  # Python distributions that come as system packages, not wheels
    exclude: tuple[Glob, ...] = ()
    roles: Annotated[tuple[OwnRole, ...], Field(min_length=1)] = ROLES  # the images that it has
    budget_mb: int = Field(gt=0)  # uncompressed MB (10^6 bytes) of the worker image
    disk_mb: int = Field(gt=0)  # free space a cold build needs
    driver: Line | None = None  # amdgpu versions tested with this userspace
    alternatives: dict[Name, tuple[ComponentChoice, ...]] = {}  # other ways a component of this stack can be had
    facts: tuple[StackFact, ...] = ()
    further: dict[Role, FurtherImage] = {}  # role -> its image

    @model_validator(mode="after")
    def _further_images_are_whole(self) -> Self:
        for role, image in self.further.items():
            if role not in FURTHER:
                raise AtKey(("further", role), f"'{role}' is no further image: {', '.join(FURTHER)}")
            for name in image.components:
                if name in self.components:
                    raise AtKey(("further", role, "components", name), f"'{name}' is a component of the stack already")
            placed = [name for layer in image.layers for name in layer]
            known = {**self.components, **image.components}
            for name in placed:
                if name not in known:
                    why = f"'{name}' is not among this stack's components{hinted(name, known)}"
                    raise AtKey(("further", role, "layers"), why)
            if unplaced := [name for name in image.components if name not in placed]:
                raise AtKey(("further", role, "layers"), f"no layer holds '{unplaced[0]}'")
        return self

    @model_validator(mode="after")
    def _layers_hold_every_component(self) -> Self:
        placed: list[str] = []
        for row, layer in enumerate(self.layers):
            for column, name in enumerate(layer):
                if name not in self.components:
                    hint = hinted(name, self.components)
                    raise AtKey(("layers", row, column), f"'{name}' is not among this stack's components{hint}")
                if name in placed:
                    again = "twice in a layer" if name in layer[:column] else "in two layers"
                    raise AtKey(("layers", row, column), f"'{name}' is {again}")
                placed.append(name)
        for name in self.alternatives:
            if name not in self.components:
                hint = hinted(name, self.components)
                raise AtKey(("alternatives", name), f"'{name}' is not among this stack's components{hint}")
        missing = [name for name in self.components if name not in placed]
        if missing:
            raise ValueError(f"layers: no layer holds '{missing[0]}'")
        return self

    @model_validator(mode="after")
    def _archives_have_names_of_their_own(self) -> Self:
        urls: dict[str, str] = {}
        for name, choice in self.components.items():
            for archive in choice.archives:
                if urls.setdefault(archive.file, archive.url) != archive.url:
                    why = f"'{name}' has an archive '{archive.file}' as another has: set 'archive'"
                    raise AtKey(("components", name), why)
        return self

    @property
    def every_component(self) -> tuple[str, ...]:
        """With those of its further images."""
        return tuple(dict.fromkeys([*self.components, *(n for each in self.further.values() for n in each.components)]))

    def for_role(self, role: Role) -> Self:
        """The stack of a further image alone: what the others have in it is not there.

        Raises:
            BadInput: it has no such image.
        """
        own = self.further.get(role)
        if own is None:
            raise BadInput.of("no-such-image", stack=self.name, role=role)
        every = {**self.components, **own.components}
        update = {
            "components": {name: every[name] for layer in own.layers for name in layer},
            "layers": own.layers,
            "repositories": (),
            "wheels": own.wheels,
            "roles": (role,),
            "disk_mb": own.disk_mb,
            "alternatives": {},
            "further": {},
        }
        return self.model_copy(update=update)

    @property
    def on_components(self) -> bool:
        """Whether its base has components of it already."""
        return any(choice.method == "base" for choice in self.components.values())

    @property
    def rocm_series(self) -> str:
        """Of ROCm's version what AMD's packages have in their names since 7.9: 10.0 of 10.0.0."""
        return ".".join(self.components["rocm"].version.split(".")[:2]) if "rocm" in self.components else ""

    def each(self, name: str) -> tuple[str, ...]:
        """A name as a template has it, of this stack: with GFX one for each of its targets."""
        named = name.replace("ROCM", self.rocm_series)
        return tuple(dict.fromkeys(named.replace("GFX", gfx) for gfx in self.gfx))

    @property
    def for_one_program(self) -> bool:
        """Whether it trains nothing but what one program does, or nothing at all."""
        return self.framework == "maxtext" or self.framework not in self.components

    @property
    def framework_rocm(self) -> str | None:
        """The ROCm release that the training framework is built for, where a name says it: PyTorch's version
        (2.11.0+rocm7.2), JAX's plugin among the wheels (jax-rocm7-plugin). None: it has no ROCm."""
        choice = self.components.get(self.framework)
        if choice is None:
            return None
        if self.framework == "maxtext":  # its requirements name the plugin of ROCm's major release
            return self.components["rocm"].version.partition(".")[0] if "rocm" in self.components else None
        if self.framework == "jax":
            found = re.search(r"\bjax-rocm([0-9]+)-plugin\b", " ".join(self.wheels))
        else:
            found = re.search(r"\+rocm([0-9.]+[0-9])", choice.version)
        return found[1] if found else None

    def with_gfx(self, gfx: tuple[str, ...]) -> Self:
        """The same stack for other gfx targets.

        Raises:
            BadInput: not a gfx target, or none.
        """
        try:
            chosen = TypeAdapter(GfxTargets).validate_python(gfx)
        except ValidationError as error:
            problem = document.sentence(error.errors()[0], Value)
            raise BadInput.of("bad-gfx", gfx=",".join(gfx), problem=problem) from None
        return self.model_copy(update={"gfx": chosen, "gfx_also": ()})

    def for_targets(self, targets: Iterable[str]) -> Self:
        """The same stack built for these GPUs, where it has no code for one of them and can have it for all."""
        wanted = tuple(sorted(targets))
        if set(wanted) <= {*self.gfx} or not set(wanted) <= {*self.gfx, *self.gfx_also}:
            return self
        return self.with_gfx(wanted)

    def with_methods(self, methods: Mapping[str, str]) -> Self:
        """The same stack with some components by another method, as its `alternatives` have them.

        Raises:
            BadInput: the stack has no such component, or no such method for it.
        """
        chosen, others = dict(self.components), dict(self.alternatives)
        for name, method in methods.items():
            if name not in chosen:
                hint = hinted(name, self.alternatives)
                raise BadInput.of("no-such-component", stack=self.name, name=name, hint=hint)
            known = {choice.method: choice for choice in (*self.alternatives.get(name, ()), chosen[name])}
            if method not in known:
                hint = hinted(method, known)
                raise BadInput.of("no-such-method", stack=self.name, name=name, method=method, hint=hint)
            chosen[name] = known.pop(method)
            others[name] = tuple(known.values())
        return self.model_copy(update={"components": chosen, "alternatives": others})


def names(overlay: Path | None = None) -> dict[str, Path]:
    """Every known stack and its file; the user's own come before ours of the same name."""
    folders = [paths.images() / "stacks", *([overlay / "stacks"] if overlay else [])]
    return dict(sorted({file.stem: file for folder in folders for file in folder.glob("*.yml")}.items()))


def home_of(role: str, name: str, overlay: Path | None = None) -> str:
    """The stack whose image of `role` goes with the stack `name`: that one where it has one, for a further image else
    ours, which suits any.

    Raises:
        BadInput: as `read`.
    """
    if role not in FURTHER:
        return name
    own = read(name, overlay).data.get("further")
    return name if isinstance(own, dict) and role in own else HOME


def place_of(fact: str) -> document.Path_:
    """The key path of a fact that rules speak of."""
    name, _, part = fact.partition(".")
    own: dict[str, document.Path_] = {"os": ("base", "os"), "packages": ("base", "os"), "nic": ()}
    if name in own or name in ("python", "gfx", "wheels", "driver"):
        return own.get(name, (name,))
    return ("components", name, part if part in ("method", "pmix") else "version")


def name_of(text: str) -> str:
    """The stack's name, where `text` is a name or the path of a .yml file."""
    return Path(text).stem if text.endswith((".yml", ".yaml")) else text


def load(name: str, overlay: Path | None = None) -> Stack:
    """Reads the stack called `name`, or the file at that path when it ends in .yml.

    Raises:
        BadInput: no such stack, or its file is wrong (with file:line).
    """
    return load_from(read(name, overlay), name, overlay)


def load_from(doc: document.Document, name: str, overlay: Path | None = None) -> Stack:
    """The stack that `read` gave the document of.

    Raises:
        BadInput: no such component, a field is wrong, or two contradict each other (with file:line).
    """
    _refuse_unknown(doc, overlay)
    found = doc.validate(Stack, extra={"name": name_of(name)})
    coherence.check(found, doc)
    return found


def _refuse_unknown(doc: document.Document, overlay: Path | None) -> None:
    """Before the layers, which would call every other mention of a misspelt component wrong."""
    folders = [paths.templates() / "components", *([overlay / "components"] if overlay else [])]
    known = {file.stem for folder in folders for file in folder.glob("*.j2")}
    named = doc.data.get("components")
    for name in named if isinstance(named, dict) else ():
        if re.fullmatch(r"[a-z0-9.-]+", name) and name not in known and nearest(name, known):
            raise BadInput.of("unknown-component", doc.where(("components", name)), name=name, hint=hinted(name, known))


def read(name: str, overlay: Path | None = None) -> document.Document:
    """The document of the stack called `name`, not validated yet.

    Raises:
        BadInput: no such stack, or its file can't be read.
    """
    known = names(overlay)
    file = Path(name) if name_of(name) != name else known.get(name)
    if file is None:
        raise BadInput.of("unknown-stack", name=name, hint=hinted(name, known))
    return document.read(file, code="unknown-stack")
