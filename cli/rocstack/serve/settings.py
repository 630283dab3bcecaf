"""What a gateway is told, as its JSON file has it. Unknown keys are refused."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from rocstack.base.document import read_text
from rocstack.base.errors import BadInput, Where
from rocstack.base.server_address import Address, ServerAddress, ServerUrl, no_token_in_the_clear
from rocstack.base.words import Value

Model = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
Absolute = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]{0,1000}$")]
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes as --max-lora-rank


class AdapterSource(Value):
    """A folder of adapters. `shared`: FOLDER/NAME, for all; `users`: FOLDER/USER/adapters/NAME, each user's own."""

    folder: Absolute
    layout: Literal["shared", "users"] = "shared"


class RepositorySource(Value):
    """A repository of an OCI registry, HOST/PATH: each tag is an adapter, for all."""

    repository: ServerUrl
    ca: Absolute | None = None  # PEM of its CA; default: the machine's
    login: Absolute | None = None  # a file with USER:PASSWORD

    @model_validator(mode="after")
    def _a_path_by_tls(self) -> Self:
        if not re.fullmatch(r"https?://[^/]+(/[a-z0-9]+([._-]+[a-z0-9]+)*)+", self.repository):
            raise ValueError(f"{self.repository} is no repository: https://HOST/PATH, in small letters")
        no_token_in_the_clear(self.repository)
        return self


class EngineChoice(Value):
    """How vLLM is started. Its model, socket and adapter limits are the gateway's to give."""

    command: Annotated[tuple[str, ...], Field(min_length=1)] = ("vllm",)
    arguments: tuple[str, ...] = ()  # of `vllm serve`, such as --max-model-len=4096
    environment: dict[str, str] = {}
    start_s: int = Field(default=900, ge=1, le=86_400)  # the longest that a start may take
    log: Absolute | None = None  # default: standard error of the gateway


class PeopleOfService(Value):
    """rocstack's service, which says whose a person's own Slurm token is."""

    url: ServerUrl
    ca: Absolute | None = None  # PEM of its CA; default: the machine's

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        no_token_in_the_clear(self.url)
        return self


class ServeSettings(ServerAddress):
    model: Absolute  # folder of the base model, with its weights as safetensors
    name: Model | None = None  # of the base model in requests; default: the folder's
    also: tuple[str, ...] = ()  # names that adapters may call their base model by
    listen: Address = "127.0.0.1:8000"
    certificate: Absolute | None = None
    key: Absolute | None = None
    tokens: Absolute | None = None  # file of users and the sha256 of their tokens; without one: everybody, on loopback
    people: PeopleOfService | None = None  # in their place
    announce: Absolute | None = None  # or a file to be made: port, token and certificate, for whoever may read it
    sources: tuple[AdapterSource, ...] = ()
    repositories: tuple[RepositorySource, ...] = ()
    state: Absolute  # a folder of the gateway's own: copies of loaded adapters, the engine's socket
    max_rank: int = 64
    active: int = Field(8, ge=1, le=1024)  # adapters that one batch may mix
    resident: int = Field(32, ge=1, le=100_000)  # adapters that are loaded at most
    idle_s: int = Field(3600, ge=1)  # unused for so long, an adapter is unloaded
    pins: int = Field(4, ge=0)  # adapters that a user may pin
    rescan_s: float = Field(10, gt=0)  # between two looks into the folders
    adapter_mib: int = Field(2048, ge=1)  # an adapter's weights at most
    body_mib: int = Field(8, ge=1, le=1024)  # a request at most
    waiting: int = Field(1024, ge=1)  # requests that wait for the engine's start or for a slot at most
    wait_s: float = Field(300, gt=0)  # and how long
    engine: EngineChoice = EngineChoice()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_rank not in RANKS:
            raise ValueError(f"max_rank is one of {', '.join(map(str, RANKS))}")
        if self.active > self.resident:
            raise ValueError("active adapters are among the resident ones: active can't be more than resident")
        if sum(each is not None for each in (self.tokens, self.people, self.announce)) > 1:
            raise ValueError("tokens, people and announce each say who may ask: choose one")
        if self.announce and self.tls:
            raise ValueError("announce makes a certificate of its own: leave out certificate and key")
        if self.port == 0 and not self.announce:
            raise ValueError("port 0 is any that is free, which nobody would know: it needs announce")
        if not self.on_loopback and not self.announce:
            if not self.tls:
                raise ValueError(f"{self.listen} is no loopback address: it needs a certificate and a key")
            if self.tokens is None and self.people is None:
                raise ValueError(f"{self.listen} is no loopback address: it needs a file of tokens, or people")
        return self

    @property
    def base(self) -> str:
        """The base model's name in requests."""
        return self.name or Path(self.model).name


def load(path: Path) -> ServeSettings:
    """
    Raises:
        BadInput: there is no such file, it is no JSON, or something in it is wrong.
    """
    try:
        return ServeSettings.model_validate_json(read_text(path, code="serve-settings-unread"))
    except ValidationError as error:
        raise refusal(error.errors()[0], path) from None


def refusal(problem: Any, path: Path | None = None) -> BadInput:
    """What pydantic found, in words."""
    place = ".".join(map(str, problem["loc"]))
    why = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        why = "there is no such key"
    where = Where(str(path)) if path else None
    return BadInput.of("serve-settings", where, key=f"{place}: " if place else "", why=why)
