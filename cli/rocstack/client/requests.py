"""The service's own calls as values: what is sent, and what the answer is. Pure; both clients send the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from rocstack.client.answers import (
    JobEventAnswer,
    ListOf,
    LogAnswer,
    NodeAnswer,
    PersonAnswer,
    QosAnswer,
    RecipeAnswer,
    ReservationAnswer,
    ServerAnswer,
    ServiceJob,
    StepsAnswer,
    VerifyReportAnswer,
)

Answer = TypeVar("Answer")


class RequestFailed(Exception):
    """The service's answer was no. `status` is HTTP's, 0 where it gave none; `code` is of docs/troubleshooting.md."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param


@dataclass(frozen=True)
class ServiceCall(Generic[Answer]):
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    def answer(self, status: int, found: object) -> Answer:
        """
        Raises:
            RequestFailed: the answer was no.
        """
        if status == 200 and isinstance(found, dict):
            return cast(Answer, found)
        said = found.get("error") if isinstance(found, dict) else None
        said = said if isinstance(said, dict) else {}
        message = str(said.get("message") or f"the service answered {status}")
        param = said.get("param")
        raise RequestFailed(status, str(said.get("code") or "no-answer"), message, str(param) if param else None)


def me() -> ServiceCall[PersonAnswer]:
    return ServiceCall("GET", "/v1/me")


def recipes() -> ServiceCall[ListOf[RecipeAnswer]]:
    return ServiceCall("GET", "/v1/recipes")


def recipe(name: str) -> ServiceCall[RecipeAnswer]:
    return ServiceCall("GET", f"/v1/recipes/{_part(name)}")


def submit(
    name: str, parameters: Mapping[str, str | int | float | bool], arguments: Sequence[str], options: Mapping[str, Any]
) -> ServiceCall[ServiceJob]:
    body = {"recipe": name, "parameters": dict(parameters), "arguments": list(arguments), **_given(options)}
    return ServiceCall("POST", "/v1/jobs", body=body)


def jobs(after: str | None, limit: int, status: Sequence[str], kind: str | None) -> ServiceCall[ListOf[ServiceJob]]:
    query = _given({"after": after, "limit": limit, "status": list(status) or None, "kind": kind})
    return ServiceCall("GET", "/v1/jobs", query)


def job(key: str) -> ServiceCall[ServiceJob]:
    return ServiceCall("GET", f"/v1/jobs/{_part(key)}")


def change(key: str, verb: str) -> ServiceCall[ServiceJob]:
    return ServiceCall("POST", f"/v1/jobs/{_part(key)}/{verb}")


def events(key: str) -> ServiceCall[ListOf[JobEventAnswer]]:
    return ServiceCall("GET", f"/v1/jobs/{_part(key)}/events")


def log(key: str, offset: int) -> ServiceCall[LogAnswer]:
    return ServiceCall("GET", f"/v1/jobs/{_part(key)}/log", {"offset": offset})


def metrics(key: str, after: int) -> ServiceCall[StepsAnswer]:
    return ServiceCall("GET", f"/v1/jobs/{_part(key)}/metrics", {"after": after})


def size(model: str, options: Mapping[str, Any]) -> ServiceCall[dict[str, Any]]:
    return ServiceCall("POST", "/v1/size", body={"model": model, **_given(options)})


def nodes() -> ServiceCall[ListOf[NodeAnswer]]:
    return ServiceCall("GET", "/v1/nodes")


def qos() -> ServiceCall[ListOf[QosAnswer]]:
    return ServiceCall("GET", "/v1/qos")


def reservations() -> ServiceCall[ListOf[ReservationAnswer]]:
    return ServiceCall("GET", "/v1/reservations")


def verify_reports() -> ServiceCall[ListOf[VerifyReportAnswer]]:
    return ServiceCall("GET", "/v1/verify/reports")


def verify_report(key: str) -> ServiceCall[dict[str, Any]]:
    return ServiceCall("GET", f"/v1/verify/reports/{_part(key)}")


def servers() -> ServiceCall[ListOf[ServerAnswer]]:
    return ServiceCall("GET", "/v1/servers")


def serve(model: str, replicas: int, options: Mapping[str, Any]) -> ServiceCall[ListOf[ServerAnswer]]:
    return ServiceCall("POST", "/v1/servers", body={"model": model, "replicas": replicas, **_given(options)})


def _part(name: str) -> str:
    return quote(name, safe="")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
