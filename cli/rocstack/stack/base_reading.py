"""What was read from a base image that has components already, and what a stack becomes by it. What an image says of
itself is data: every value passes a checked word before it reaches a Dockerfile or a label. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from rocstack.base.errors import BadInput
from rocstack.base.words import Driver, FolderPath, Gfx, ImageRef, Name, Value, Version
from rocstack.node.image_facts import ImageFacts
from rocstack.stack.stack import UNREAD, ComponentChoice, Stack, StackBase

Origin = Literal["amd", "apt", "wheel", "source"]  # whose a component is: the rules of AMD's packages are for AMD's
Words = tuple[Annotated[str, Field(max_length=2000)], ...] | None
PLENTY = 10**9  # MB: how large somebody else's image is, is not ours to judge


class FoundComponent(Value):
    """One component in a base image. `version` is None where no file says it."""

    version: Version | None = None
    origin: Origin
    prefix: FolderPath | None = None


class FoundVerbs(Value):
    """The libibverbs that the base's loader takes. `package` is the distribution's package that it is of."""

    path: FolderPath
    private_abi: int | None = None
    package: Version | None = None


class BaseStart(Value):
    """What the image itself starts, from its configuration."""

    entrypoint: Words = None
    cmd: Words = None
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,64}$")] = ""
    shell: Words = None


class BaseReading(Value):
    """A base image as far as a build must know it."""

    os: Name  # debian-13
    glibc: Annotated[str, Field(pattern=r"^[0-9]{1,3}[.][0-9]{1,3}$")]
    python: Version  # of the python3 that a command gets: 3.12
    # where that one looks for packages that pip installs
    site: Annotated[FolderPath, Field(pattern=r"/(site|dist)-packages$")]
    hip: Version | None = None  # torch.version.hip
    cuda: Version | None = None  # torch.version.cuda
    gfx: tuple[Gfx, ...] = ()  # targets of which the GPU libraries have kernel files
    components: dict[Name, FoundComponent] = {}
    verbs: FoundVerbs | None = None
    drivers: dict[Driver, int | None] = {}  # libibverbs' own providers -> private ABI
    start: BaseStart = BaseStart()


def parse(text: str, reference: str, **more: object) -> BaseReading:
    """The reading from the JSON that a program in the base image printed.

    Raises:
        BadInput: it is no such reading.
    """
    try:
        return BaseReading.model_validate_json(text).model_copy(update=more)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")[:200]
        raise BadInput.of("base-unreadable", image=reference, problem=problem) from None


def refuse(reading: BaseReading, reference: str, driver: str | None, ways: Sequence[str]) -> None:
    """Refuses a base on which no image that works can be built, whatever the stack. `driver` is libibverbs' name of
    the NIC's provider, which gets in by `ways`.

    Raises:
        BadInput: its PyTorch is one for CUDA, or the NIC's provider won't fit its libibverbs.
    """
    torch = reading.components.get("pytorch")
    if torch and reading.cuda and not reading.hip:
        raise BadInput.of("base-cuda", image=reference, torch=torch.version or "", cuda=reading.cuda)
    verbs = reading.verbs
    if not (driver and verbs) or set(ways) <= {"newer"}:
        return
    path, abi = verbs.path, verbs.private_abi
    if abi is None:
        raise BadInput.of("base-verbs-unread", image=reference, path=path, driver=driver)
    if verbs.package is None:
        raise BadInput.of("base-verbs-foreign", image=reference, path=path, driver=driver, abi=abi)
    if driver in reading.drivers and reading.drivers[driver] != abi:
        has = reading.drivers[driver] or "none"
        raise BadInput.of("base-verbs-other", image=reference, path=path, driver=driver, abi=abi, has=has)


def refuse_other(stack: Stack, reading: BaseReading, reference: str) -> None:
    """
    Raises:
        BadInput: the base is another system than the stack's, or has another Python.
    """
    for what, wanted, found in (
        ("system", stack.base.os, reading.os),
        ("Python", stack.python, reading.python),
    ):
        if wanted != found:
            raise BadInput.of("base-other", image=reference, stack=stack.name, what=what, wanted=wanted, found=found)


def applied(stack: Stack, reading: BaseReading, reference: str) -> Stack:
    """The stack with the versions that its base image has.

    Raises:
        BadInput: the base lacks a component or a gfx target, or is another system than the stack's.
    """
    refuse_other(stack, reading, reference)
    components = dict(stack.components)
    asked, rocm = stack.components.get("rocm"), reading.components.get("rocm")
    if asked and asked.method == "base" and rocm and rocm.origin == "wheel":
        raise BadInput.of("base-rocm-wheels", image=reference, stack=stack.name, version=rocm.version, at=rocm.prefix)
    for name, choice in stack.components.items():
        if choice.method == "base":
            if name not in reading.components:
                raise BadInput.of("base-lacks", image=reference, stack=stack.name, name=name)
            version = _version(name, reading) or choice.version
            components[name] = choice.model_copy(update={"version": version})
    lacking = [gfx for gfx in stack.gfx if gfx not in reading.gfx]
    if reading.gfx and lacking:  # without a file that tells, it is not known
        raise BadInput.of("base-gfx", image=reference, lacking=", ".join(lacking), found=", ".join(reading.gfx))
    return stack.model_copy(update={"components": components})


def on_top(reading: BaseReading, reference: str, name: str) -> Stack:
    """A stack of nothing but the NIC's layer on an image: what the base has, and libibverbs where it has none."""
    rdma = _version("rdma", reading) or UNREAD
    stack = Stack(
        name=name,
        about=f"{reference} with a NIC's layer",
        base=StackBase(image=_image(reference), os=reading.os),
        python=reading.python,
        gfx=("gfx90a",),
        components={"rdma": ComponentChoice(method="base", version=rdma)},
        layers=(("rdma",),),
        roles=("worker",),
        budget_mb=PLENTY,
        disk_mb=2000,
    )
    return stack.model_copy(update={"gfx": reading.gfx})


def facts(reading: BaseReading) -> dict[str, object]:
    """What the rules judge of it, by the names that they use."""
    out: dict[str, object] = {"os": reading.os}
    for name, found in reading.components.items():
        if version := _version(name, reading):
            out[name] = version
        out[f"{name}.method"] = found.origin
    if reading.hip:
        # HIP's number was ROCm's until 7.2; PyTorch's version names ROCm itself.
        rocm = (_version("pytorch", reading) or "").partition("+rocm")[2] or reading.hip
        out["pytorch.rocm"] = ".".join(rocm.split(".")[:2])
    return out


def image_facts(reading: BaseReading) -> ImageFacts:
    """The base, as far as the nodes' GPUs are concerned."""
    torch = _version("pytorch", reading) or ""
    rocm = torch.partition("+rocm")[2] or None
    return ImageFacts("base", gfx=reading.gfx, framework="pytorch" if torch else None, framework_rocm=rocm)


def sentence(reading: BaseReading, reference: str) -> str:
    """What was read, for a person."""
    words = [f"{reading.os}, glibc {reading.glibc}, Python {reading.python}"]
    words += [f"{name} {version}" for name, version in versions(reading).items()]
    words += [f"libibverbs of private ABI {reading.verbs.private_abi}" if reading.verbs else "no libibverbs"]
    words += [f"GPU code for {', '.join(reading.gfx)}"] if reading.gfx else []
    return f"{reference}: {'; '.join(words)}"


def versions(reading: BaseReading) -> Mapping[str, str]:
    """Component -> version, of those whose version is known."""
    return {name: version for name in reading.components if (version := _version(name, reading))}


def _version(name: str, reading: BaseReading) -> str | None:
    """PyTorch's says which ROCm it is for, as a wheel's does."""
    found = reading.components.get(name)
    version = found.version if found else None
    if name == "pytorch" and version and reading.hip and "+rocm" not in version:
        return f"{version.partition('+')[0]}+rocm{'.'.join(reading.hip.split('.')[:2])}"
    return version


def _image(reference: str) -> ImageRef:
    return reference
