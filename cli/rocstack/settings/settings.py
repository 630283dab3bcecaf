"""Settings: flag > ROCSTACK_* variable > rocstack.yml > default."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rocstack.base import document, image_names, paths
from rocstack.base.errors import BadInput, RocstackError, Where, did_you_mean, hinted
from rocstack.base.image_names import registry_text
from rocstack.base.levels import Level
from rocstack.base.own_file import OwnFile
from rocstack.base.text import distance, plain, shortened
from rocstack.base.words import ImagePrefix, ImageRef, Line, Name, Tag, Url, Value
from rocstack.cluster.settings import ClusterSettings
from rocstack.container.run_line import DEFAULT, RunProfile
from rocstack.stack import stack
from rocstack.stack.stack import AptRepository

FILE = "rocstack.yml"
PREFIX = "ROCSTACK_"
MOST_CERTIFICATES = 8 << 20  # bytes; the distributions' have a quarter of one MB
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _no_password(address: str) -> str:
    if "@" in address:
        raise ValueError("the mirror's address stays in the image, so it can't hold a name and password")
    return address


def _some(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _folder(text: str) -> str:
    if text and not paths.there(text, Path.is_dir):
        raise ValueError(f"no folder {shortened(text)}")
    return text


def _certificates(text: str) -> str:
    """What a build gets: of the images' own steps, too. A copied rocstack.yml could name any file of the person's."""
    try:
        found = b""
        if text:
            with Path(text).expanduser().open("rb") as file:
                found = file.read(MOST_CERTIFICATES + 1)
    except OSError as error:
        raise ValueError(f"{shortened(text)} can't be read: {error.strerror}") from None
    alone = b"-----BEGIN CERTIFICATE-----" in found and b"PRIVATE KEY-----" not in found
    if text and (not alone or len(found) > MOST_CERTIFICATES):
        raise ValueError(f"{shortened(text)} doesn't hold certificates (PEM) alone")
    return text


class TrustPolicy(Value):
    """What `deploy` asks of an image before any node gets it. Without keys it asks nothing. Locks are
    read, and the history of deploys, only as these keys signed them."""

    keys: tuple[OwnFile, ...] = ()  # public keys (PEM); each is trusted
    require: tuple[Literal["provenance", "sbom", "verify"], ...] = ("provenance", "sbom")  # attestations of these keys
    level: Level | None = None  # of the acceptance suite, by a signed report
    registry: Annotated[Line, AfterValidator(registry_text)] = ""  # where the signatures are; default: the setting push
    replaces: tuple[Line, ...] = ()  # fingerprints of the keys that the cluster trusted until now
    operators: tuple[OwnFile, ...] = ()  # public keys of the history's lines; default: keys
    sign: OwnFile = ""  # private key that signs this machine's lines of the history
    password_file: OwnFile = ""  # of that key

    @model_validator(mode="after")
    def _needs_keys(self) -> Self:
        if not self.keys and (self.level is not None or self.registry):
            raise ValueError("nothing is checked without keys: name the release's public keys in trust.keys")
        if bool(self.sign) != bool(self.password_file):
            raise ValueError("`sign` and `password_file` belong together: a deploy asks for no password")
        return self


class Settings(Value):
    """Every setting; the description is what `rocstack config` and the reference print."""

    stack: Line = Field("debian-13", description="stack to build: a name of `rocstack stacks`, or a .yml file")
    nic: Name = Field("tcp", description="NIC profile")
    nic_source: Line = Field(
        "", description="vendor's bundle or library source for the NIC's provider; default: the usual folders"
    )
    nic_accept: Line = Field("", description="release of that library to take, whatever the host's driver")
    nic_plugin: Line = Field("", description="source archive of RCCL's plugin for the NIC, to be compiled in the image")
    nic_repository: AptRepository | None = Field(
        None, description="the NIC vendor's apt repository (name, uri, suite, components, key, key_sha256, origin)"
    )
    overlay: Line = Field("", description="folder with your overlay.yml, components/, nic/ and stacks/")
    inventory: Line = Field(
        "inventory.yml", description="inventory of the cluster: what `deploy`, `status`, `logs`, `down` ... go by"
    )
    out: Annotated[Line, AfterValidator(_some)] = Field(
        ".rocstack", description="folder for contexts, logs and reports"
    )
    image_prefix: ImagePrefix = Field("rocstack", description="local image names start with this")
    base: Literal["auto", "registry", "mmdebstrap"] = Field(
        "auto", description="where the base comes from; auto: the registry, else mmdebstrap"
    )
    base_image: ImageRef | Literal[""] = Field("", description="base image instead of the stack's own")
    apt_mirror: Annotated[Url | Literal[""], AfterValidator(_no_password)] = Field(
        "", description="the distribution's mirror, instead of the client's default"
    )
    pip_index: Url | Literal[""] = Field("", description="wheel index, instead of pip's own configuration")
    ca_bundle: Annotated[OwnFile, AfterValidator(_certificates)] = Field(
        "",
        description="CA bundle (PEM) for builds behind an inspecting proxy; default: SSL_CERT_FILE and the like",
    )
    sources: Annotated[Line, AfterValidator(_folder)] = Field(
        "", description="folder of upstream archives to build from, instead of downloading them"
    )
    rehearsal: bool = Field(
        False, description="build and deploy images that can't use the nodes' GPUs; they are marked as rehearsal images"
    )
    push: Annotated[Line, AfterValidator(registry_text)] = Field("", description="registry[:port][/folder] to push to")
    tag: Tag | Literal[""] = Field("", description="release tag; default: ISO year and week, such as 2026.47")
    attempts: int = Field(4, ge=1, le=20, description="tries of a step that fails for a transient reason")
    trust: TrustPolicy = Field(
        TrustPolicy(),
        description="what deploy asks of images: keys (public), require (provenance, sbom, verify), level, registry",
    )
    run: RunProfile = Field(
        DEFAULT, description="limits and shared memory of containers that `run` starts (ulimits, shm)"
    )
    cluster: ClusterSettings = Field(
        ClusterSettings(),
        description="the Slurm cluster that `deploy` makes: partitions, QoS, accounts, users, how it is updated",
    )

    def overlay_folder(self) -> Path | None:
        return Path(self.overlay).expanduser() if self.overlay else None

    def image_name(self, role: str) -> str:
        """The image that `rocstack build` makes with these settings."""
        home = stack.name_of(stack.home_of(role, self.stack, self.overlay_folder()))
        return image_names.built_name(self.image_prefix, role, home, self.nic)

    def stack_name(self) -> str:
        """The stack's name, also where a file is set."""
        return stack.name_of(self.stack)


class SettingValue(Value):
    """One setting's value and where it came from; a password in an address is not shown."""

    name: str
    value: Any
    source: str


def load(flags: Mapping[str, Any], env: Mapping[str, str], folder: Path) -> tuple[Settings, tuple[SettingValue, ...]]:
    """Joins the layers; `flags` holds only what was given.

    Raises:
        BadInput: an unknown or wrong setting, with the place it came from.
    """
    file = folder / FILE
    doc = document.read(file) if os.path.lexists(file) else document.Document(str(file), {})
    if not os.path.lexists(file):
        _refuse_other_names(folder)
    known = Settings.model_fields
    own = doc.data
    for key in own:
        if key not in known:
            below = ": it belongs below `cluster:`" if key in ClusterSettings.model_fields else ""
            raise BadInput.of("unknown-setting", doc.where((key,)), key=key, hint=below or hinted(key, known))
    chosen: list[SettingValue] = []
    values: dict[str, Any] = {}
    for name, info in known.items():
        variable = PREFIX + name.upper()
        if flags.get(name) is not None:
            value, source = flags[name], f"--{name.replace('_', '-')}"
        elif env.get(variable):
            value, source = env[variable], variable
        elif name in own:
            value = document.tuples(own[name]) if isinstance(own[name], dict) else own[name]
            source = str(doc.where((name,)))
        else:
            value, source = info.default, "default"
        if info.annotation is int and isinstance(value, str) and value.isdecimal():
            value = int(value)
        if info.annotation is bool and isinstance(value, str):
            value = _TRUTH.get(value.lower(), value)
        if source != "default":  # so that `model_fields_set` has what somebody chose
            values[name] = value
        chosen.append(SettingValue(name=name, value=_without_password(value), source=source))
    _refuse_misspelt(env)
    try:
        return Settings.model_validate(values), tuple(chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        setting = next(f for f in chosen if f.name == name)
        nested = len(first["loc"]) > 1 or name == "cluster"
        if setting.source.startswith(str(file)) and (nested or first["type"] == "literal_error"):
            told = doc.explain(Settings, error)
            told.what = _without_password(told.what)
            told.args = (told.what,)
            raise told from None
        why = _without_password(document.sentence(first, Settings))
        value = (
            repr(shortened(setting.value)) if isinstance(setting.value, str) else json.dumps(setting.value, default=str)
        )
        raise BadInput.of("bad-setting", Where(setting.source), name=name, value=value, why=why) from None


@contextmanager
def of_setting(chosen: Settings, name: str, folder: Path) -> Iterator[None]:
    """An error in what a setting names gets the line in rocstack.yml, where the setting stands there."""
    try:
        yield
    except RocstackError as error:
        file = folder / FILE
        if not error.where and file.exists():
            doc, value = document.read(file), getattr(chosen, name)
            if doc.data.get(name) == value or isinstance(value, Value):  # else a flag or a variable says it
                error.where = doc.where((name,))
        raise


@contextmanager
def placed(folder: Path) -> Iterator[None]:
    """An error that names keys of rocstack.yml gets their line there."""
    try:
        yield
    except RocstackError as error:
        file = folder / FILE
        if error.keys and not error.where and file.exists():
            error.where = document.read(file).where(error.keys)
        raise


def _refuse_other_names(folder: Path) -> None:
    """Of a file that is meant to be rocstack.yml, but for its ending, capitals or a letter."""
    with suppress(OSError):
        for other in sorted(each.name for each in folder.iterdir() if not each.name.endswith("~") and each.is_file()):
            word = plain(other).strip(".").removesuffix(".txt").replace(".yml.yml", ".yml")
            ours = word.endswith((".yml", ".yaml")) or word in ("rocstack.yl", "rocstack.ym", "rocstackyml")
            if ours and any(distance(word, known, 2) <= 1 for known in (FILE, "rocstack.yaml")):
                raise BadInput.of("settings-elsewhere", folder / other, name=other, file=FILE)


def _without_password(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_password(item) for key, item in value.items()}
    return re.sub(r"//[^/@\s]*@", "//***@", value) if isinstance(value, str) else value


def _refuse_misspelt(env: Mapping[str, str]) -> None:
    ours = [name.upper() for name in Settings.model_fields]
    for variable in env:
        name = variable.removeprefix(PREFIX)
        if variable.startswith(PREFIX) and name not in ours and not name.startswith("TEST_"):
            offer = did_you_mean(name, ours)  # without the prefix, which would make any two look alike
            if offer and offer.startswith("did you mean"):
                offer = offer.replace("'", f"'{PREFIX}", 1).replace(" or '", f" or '{PREFIX}")
                raise BadInput.of("misspelt-variable", Where("environment"), variable=variable, offer=offer)
