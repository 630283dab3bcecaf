"""What the build must know of this site's network: proxies, mirrors, CA bundle. All of it may be secret."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from rocstack.base.words import Value
from rocstack.settings.settings import Settings

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PIP = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
# Variables of common clients; the first that names a file counts.
_CA = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Site(Value):
    env: dict[str, str] = {}
    ca: str | None = None

    def env_file(self) -> str:
        """Shell assignments, for a secret mount."""
        return "".join(f"{key}={shlex.quote(value)}\n" for key, value in sorted(self.env.items()))


def of(settings: Settings, env: Mapping[str, str] = os.environ) -> Site:
    """This machine's site: settings first, then what the environment tells every client."""
    variables: dict[str, str] = {}
    for name in _PROXIES:
        value = env.get(name) or env.get(name.upper())
        if value:
            variables[name] = variables[name.upper()] = value
    for name in _PIP:
        if env.get(name) and not env[name].startswith("file:"):
            variables[name] = env[name]
    if settings.pip_index:
        variables["PIP_INDEX_URL"] = settings.pip_index
    if settings.apt_mirror:
        variables["ROCSTACK_MIRROR"] = settings.apt_mirror
    ca = settings.ca_bundle or next((env[n] for n in _CA if env.get(n) and Path(env[n]).is_file()), None)
    return Site(env=variables, ca=ca)
