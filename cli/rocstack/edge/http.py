"""HTTP to addresses that others choose."""

import requests


class HttpSession(requests.Session):
    """Sends no login of ~/.netrc: a server could have it sent to whatever it names, also by a redirect."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)
