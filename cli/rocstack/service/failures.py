"""What the interface answers where it can't do what was asked: OpenAI's one form, with our codes and sentences."""

from typing import Any, Self

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError


class ServiceError(RocstackError):
    """`status` is that of HTTP, `kind` the type in OpenAI's form, `param` the field of the request that is meant."""

    status, kind = 500, "server_error"
    param: str | None = None

    def about(self, param: str) -> Self:
        self.param = param
        return self


class RequestRefused(ServiceError, BadInput):
    status, kind = 400, "invalid_request_error"


class NotSignedIn(ServiceError, BadInput):
    status, kind = 401, "authentication_error"


class NotAllowed(ServiceError, BadInput):
    status, kind = 403, "permission_error"


class NotThere(ServiceError, BadInput):
    """It isn't there, or is somebody else's: nobody can tell which."""

    status, kind = 404, "invalid_request_error"


class NotNow(ServiceError, BadInput):
    status, kind = 409, "invalid_request_error"


class TooBig(ServiceError, BadInput):
    status, kind = 413, "invalid_request_error"


class TooMany(ServiceError, BadInput):
    status, kind = 429, "rate_limit_error"


class SlurmRefused(ServiceError, CheckFailed):
    """Slurm answered, and the answer was no. `numbers` are Slurm's of its errors."""

    status, kind = 400, "invalid_request_error"
    numbers: tuple[int, ...] = ()


class Away(ServiceError, CheckFailed):
    """Something that is needed doesn't answer at the moment. Nothing is lost; the same request works later."""

    status, kind = 503, "server_error"


def status_of(error: RocstackError) -> int:
    if isinstance(error, ServiceError):
        return error.status
    if error.code == "request-too-large":  # of the gateway's reader
        return TooBig.status
    return 400 if isinstance(error, BadInput | Missing) else 502


def sentence(error: RocstackError) -> str:
    parts = [
        error.what,
        f"({error.cause})" if error.cause else "",
        f"Next: {error.next_step}" if error.next_step else "",
    ]
    first, *rest = [part for part in parts if part]
    return " ".join([first if first.endswith((".", "?", "!")) or not rest else f"{first}.", *rest])


def on_page(error: RocstackError) -> str:
    """For a person at the page: a sentence each, and no request or option that she can't send."""
    return " ".join(map(one_sentence, filter(None, (error.what, error.cause, error.page_step or error.next_step))))


def one_sentence(text: str) -> str:
    end = "" if text.endswith((".", "?", "!")) else "."
    return f"{text[:1].upper()}{text[1:]}{end}" if text else ""


def body(message: str, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def to_body(error: RocstackError) -> dict[str, Any]:
    if isinstance(error, ServiceError):
        return body(sentence(error), error.kind, error.code, error.param)
    return body(sentence(error), "invalid_request_error" if status_of(error) < 500 else "server_error", error.code)
