"""`cluster.service.oidc` of rocstack.yml: people sign in at the site's own issuer (OpenID Connect)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from rocstack.base.own_file import OwnFile
from rocstack.base.server_address import no_token_in_the_clear
from rocstack.base.words import AtKey, PlainUrl, Value, word

TOKENS, TOKENS_UID = "tokens", 64034  # who makes Slurm tokens, in the service's image; the group has the same number
SOCKETS, SOCKET = "/run/rocstack-tokens", "/run/rocstack-tokens/socket"
JWT_KEY = "/run/secrets/jwt.key"
Claim = Annotated[str, word(r"[A-Za-z0-9_.:/-]{1,100}", "the name of a claim")]


class Issuer(Value):
    """What the service and the maker of tokens know of the issuer."""

    issuer: PlainUrl  # as its tokens say it
    client_id: Annotated[str, word(r"[\x21-\x7e]{1,255}", "a client's id, without blanks")]  # as it is registered there
    user_claim: Claim = "preferred_username"  # whose value is a name of `cluster.users`; people must not choose it
    hours: Annotated[int, Field(ge=1, le=24)] = 8  # that a person stays signed in on the page

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        try:
            no_token_in_the_clear(self.issuer)
        except AtKey as refused:
            raise AtKey(("issuer",), str(refused)) from None
        return self


class ClusterOidc(Issuer):
    """The same with files of the operator's machine."""

    client_secret_file: OwnFile = ""  # with the client's secret alone; none: PKCE only
    ca_file: OwnFile = ""  # CA of the issuer's certificate (PEM); default: the image's

    @property
    def known(self) -> Issuer:
        return Issuer(**{name: getattr(self, name) for name in Issuer.model_fields})
