"""The way in and out of the page: with a Slurm token, or at the site's issuer."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from rocstack.service import sign_in
from rocstack.service.failures import NotAllowed, NotThere
from rocstack.service.identity import COOKIE, ISSUERS_LONGEST, cookie_name
from rocstack.service.page import PageRoute, draw, forget_cookie, keep_cookie
from rocstack.service.routes import Serving, same_site
from rocstack.service.service import Service
from rocstack.service.sign_in import SignIn

_PASTED = re.compile(r"^[\"']?(SLURM_JWT=|Authorization:|Bearer)*[\"']?")
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
async def login_page(request: Request) -> Response:
    return draw(request, "login", message="")


@router.post("/login")
async def login(
    request: Request, service: Serving, token: Annotated[str, Form(max_length=ISSUERS_LONGEST * 2)] = ""
) -> Response:
    """
    Raises:
        NotSignedIn, NotAllowed, Away
    """
    _from_here(request)
    token = _PASTED.sub("", "".join(token.split())).strip("\"'")  # as people copy it
    caller = await service.door.caller(token)
    answer = RedirectResponse("/jobs", 303)
    keep_cookie(answer, service, COOKIE, caller.token)  # Slurm's: browsers drop a cookie as long as an issuer's may be
    return answer


@router.post("/logout")
async def logout(request: Request, service: Serving) -> Response:
    _from_here(request)
    answer = RedirectResponse("/login", 303)
    forget_cookie(answer, service, COOKIE)
    return answer


def _from_here(request: Request) -> None:
    """
    Raises:
        NotAllowed: another site's page sends it.
    """
    if not same_site(request):
        raise NotAllowed.of("other-site")


# At the issuer


@router.get("/login/issuer")
async def begin(request: Request, service: Serving) -> Response:
    """
    Raises:
        NotThere: the site has none.
        Away: it doesn't answer.
    """
    url, kept = await _issuer(service).begin(_back(request))
    answer = RedirectResponse(url, 303)
    # Lax: the browser comes back from another site.
    keep_cookie(answer, service, sign_in.COOKIE, kept, lax=True, max_age=sign_in.WAIT_S)
    return answer


@router.get("/login/back")
async def end(request: Request, service: Serving) -> Response:
    """
    Raises:
        NotThere: the site has none.
        NotSignedIn, NotAllowed, Away: as `SignIn.end`.
    """
    kept = request.cookies.get(cookie_name(sign_in.COOKIE, tls=service.settings.tls), "")
    token, seconds = await _issuer(service).end(_back(request), kept, request.query_params)
    # A page, and no redirect: a browser that comes from another site sends the strict cookie only after that.
    answer = draw(request, "signed-in")
    forget_cookie(answer, service, sign_in.COOKIE)
    keep_cookie(answer, service, COOKIE, token, max_age=seconds)
    return answer


def _issuer(service: Service) -> SignIn:
    """
    Raises:
        NotThere: the site has none.
    """
    if service.sign_in is None:
        raise NotThere.of("no-sign-in")
    return service.sign_in


def _back(request: Request) -> str:
    return str(request.url_for("end"))
