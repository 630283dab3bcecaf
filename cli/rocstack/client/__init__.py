"""A client of the service: its own calls. For files, fine-tuning and answers of models take the `openai` package.

    from rocstack.client import ServiceClient

    with ServiceClient("https://CONTROL:8443", token, ca="ca.pem") as client:
        job = client.submit("mine", arguments=["hostname"], nodes=2)
        for text in client.follow(job["id"]):
            print(text, end="")

`AsyncServiceClient` has the same methods, to be awaited.
"""

from rocstack.client.requests import RequestFailed
from rocstack.client.service_client import AsyncServiceClient, ServiceClient

__all__ = ["AsyncServiceClient", "RequestFailed", "ServiceClient"]
