"""Makes Slurm tokens for people who signed in at the site's issuer: `python3 -m rocstack.service.tokens SETTINGS`.

It alone has the key that signs them, and it has no port: it answers at a socket that the service alone reaches. It
believes nobody's word for who somebody is: it is shown the issuer's token, and checks that itself. So who breaks into
the service is, as before, whoever shows it a token, and nobody else."""

import argparse
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rocstack.base.errors import BadInput, RocstackError
from rocstack.base.text import from_json, visible
from rocstack.cluster.oidc import JWT_KEY, SOCKET
from rocstack.service import config, failures
from rocstack.service.body_limit import BodyLimit
from rocstack.service.config import ServicePerson
from rocstack.service.failures import NotAllowed, NotSignedIn
from rocstack.service.issuer import IssuerClient

LEAST_KEY = 32  # bytes
log = logging.getLogger("rocstack.tokens")


@dataclass(frozen=True)
class TokenMaker:
    """By `key` (HS256) slurmctld knows what it made."""

    issuer: IssuerClient
    users: Mapping[str, ServicePerson]
    key: bytes = field(repr=False)

    async def make(self, shown: str, nonce: str | None = None) -> tuple[str, str, int]:
        """A Slurm token, whose it is and when it ends: with the token that was shown, or, for the answer to a sign-in
        on the page (`nonce`), after the hours that the site gives.

        Raises:
            NotSignedIn, Away: as `IssuerClient.whose`.
            NotAllowed: the name in it is none of the cluster's people.
        """
        found = await self.issuer.whose(shown, nonce)
        if found.name not in self.users:
            raise NotAllowed.of("no-such-person", user=visible(found.name[:32]))
        now, most = int(time.time()), self.issuer.about.hours * 3600
        ends = now + most if nonce else min(now + most, int(found.ends))
        if ends <= now:
            raise NotSignedIn.of("oidc-refused", why="it is over")
        log.info("a token for %s until %s", found.name, time.strftime("%H:%M:%SZ", time.gmtime(ends)))
        return slurm_token(self.key, found.name, now, ends), found.name, ends


def slurm_token(key: bytes, user: str, now: int, ends: int) -> str:
    """As `scontrol token` makes it (Slurm's JSON Web Tokens page)."""
    from joserfc import jwt
    from joserfc.jwk import OctKey

    return jwt.encode({"alg": "HS256"}, {"sun": user, "iat": now, "exp": ends}, OctKey.import_key(key))


def application(maker: TokenMaker) -> Starlette:
    async def make(request: Request) -> JSONResponse:
        try:
            asked = from_json(await request.body())
            token, nonce = str(asked["token"]), asked.get("nonce")
        except (ValueError, KeyError, TypeError, AttributeError):
            return JSONResponse({"error": "no order"}, 400)
        try:
            made, user, ends = await maker.make(token, nonce if nonce is None else str(nonce))
        except failures.ServiceError as refused:
            return JSONResponse(refused.to_dict(), refused.status)
        return JSONResponse({"token": made, "user": user, "ends": ends})

    async def well(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    app = Starlette(routes=[Route("/token", make, methods=["POST"]), Route("/health", well)])
    app.add_middleware(BodyLimit)
    return app


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rocstack.service.tokens", description="Slurm tokens for who signed in.")
    parser.add_argument("settings", type=Path, help="service.json, as deploy writes it")
    parser.add_argument("--key", type=Path, default=JWT_KEY, help="Slurm's JWT key")
    parser.add_argument("--socket", default=SOCKET, help="where it answers")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        maker = _maker(chosen.settings, chosen.key)
    except RocstackError as error:
        where = f"{error.where}: " if error.where else ""
        sys.stderr.write(f"error: {where}{failures.sentence(error)} [{error.code}]\n")
        return error.exit_code
    server = uvicorn.Server(
        uvicorn.Config(application(maker), uds=chosen.socket, log_config=None, access_log=False, lifespan="off")
    )
    server.run()
    return 0 if server.started else 1


def _maker(file: Path, key_file: Path) -> TokenMaker:
    """
    Raises:
        BadInput: the settings can't be used, name no issuer, or the key can't be read.
    """
    settings = config.read(file)
    if settings.oidc is None:
        raise BadInput.of("no-issuer", file)
    try:
        key = key_file.read_bytes()
    except OSError:
        key = b""
    if len(key) < LEAST_KEY:
        raise BadInput.of("service-file-unreadable", file, file=key_file)
    return TokenMaker(IssuerClient(settings.oidc, settings.oidc_ca), settings.users, key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
