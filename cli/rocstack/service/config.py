"""The service's settings: a JSON file that deploy writes."""

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from rocstack.base import document
from rocstack.base.errors import BadInput
from rocstack.base.server_address import Address, ServerAddress
from rocstack.base.words import AtKey, FolderPath, PlainUrl, SlurmName, User, Value
from rocstack.cluster.oidc import SOCKET, Issuer
from rocstack.cluster.service import REPORTS, ClusterServiceLimits, SiteServer

MIB = 1 << 20


class ServicePerson(Value):
    uid: Annotated[int, Field(ge=0, le=4294967293)]
    gid: Annotated[int, Field(ge=0, le=4294967293)]


class ServiceSettings(ServerAddress):
    cluster: SlurmName
    listen: Address = "0.0.0.0:8443"
    data: FolderPath = "/shared/rocstack"
    models: FolderPath = "/shared/models"
    reports: FolderPath = REPORTS  # of verify
    slurmrestd: PlainUrl = "http://127.0.0.1:300"
    database: Annotated[str, Field(min_length=1)]  # SQLAlchemy's URL
    database_password: str | None = None  # the file that has it
    users: dict[User, ServicePerson] = {}
    limits: ClusterServiceLimits = ClusterServiceLimits()
    servers: tuple[SiteServer, ...] = ()
    oidc: Issuer | None = None
    oidc_secret: str | None = None  # files: the client's secret, and the CA of the issuer's certificate
    oidc_ca: str | None = None
    tokens: str = SOCKET  # of who makes Slurm tokens
    otlp: PlainUrl | None = None  # a collector of traces

    @model_validator(mode="after")
    def _not_in_the_clear(self) -> Self:
        if not self.tls and not self.on_loopback:
            raise AtKey(("listen",), "tokens would go over the network in the clear: name a certificate and a key")
        return self


def read(path: Path) -> ServiceSettings:
    """
    Raises:
        BadInput: it can't be read, has an unknown key or a wrong value.
    """
    return document.read(path, code="no-service-settings").validate(ServiceSettings)


def load(path: Path) -> ServiceSettings:
    """
    Raises:
        BadInput: as `read`; a file that it names can't be read.
    """
    settings = read(path)
    for file in (settings.certificate, settings.key, settings.database_password, settings.oidc_secret):
        if file is not None and not os.access(file, os.R_OK):
            raise BadInput.of("service-file-unreadable", path, file=file)
    return settings
