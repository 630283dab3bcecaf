"""The service's settings: a JSON file that deploy writes."""

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from rocstack.base import document
from rocstack.base.errors import BadInput
from rocstack.base.words import AtKey, FolderPath, PlainUrl, SlurmName, User, Value

MIB = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServicePerson(Value):
    uid: Annotated[int, Field(ge=0, le=4294967293)]
    gid: Annotated[int, Field(ge=0, le=4294967293)]


class ServiceLimits(Value):
    """Of each person."""

    file_mib: Annotated[int, Field(ge=1)] = 512
    quota_mib: Annotated[int, Field(ge=1)] = 10240  # files and adapters together
    jobs: Annotated[int, Field(ge=1)] = 100  # that wait or run


class ServiceSettings(Value):
    cluster: SlurmName
    listen: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")] = "0.0.0.0:8443"
    data: FolderPath = "/shared/rocstack"
    models: FolderPath = "/shared/models"
    slurmrestd: PlainUrl = "http://127.0.0.1:6820"
    database: Annotated[str, Field(min_length=1)]  # SQLAlchemy's URL
    database_password: str | None = None  # the file that has it
    certificate: str | None = None
    key: str | None = None
    users: dict[User, ServicePerson] = {}
    limits: ServiceLimits = ServiceLimits()

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    @model_validator(mode="after")
    def _not_in_the_clear(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise AtKey(("certificate",), "`certificate` and `key` go together")
        if self.certificate is None and self.host not in LOOPBACK:
            raise AtKey(("listen",), "tokens would go over the network in the clear: name a certificate and a key")
        return self


def load(path: Path) -> ServiceSettings:
    """
    Raises:
        BadInput: it can't be read, has an unknown key or a wrong value.
    """
    settings = document.read(path, code="no-service-settings").validate(ServiceSettings)
    for file in (settings.certificate, settings.key, settings.database_password):
        if file is not None and not os.access(file, os.R_OK):
            raise BadInput.of("service-file-unreadable", path, file=file)
    return settings
