"""A call of the cluster's service as one of its users, for who reaches the control node by ssh and not the service."""

import json
from typing import Any

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import from_json, last_line, visible
from rocstack.deploy.plan.services import SERVICES
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost

_REFUSED = (400, 404, 413, 422)
# In the service's container. The token comes by standard input, and goes to who has the service's own certificate:
# while the service is down, another program could listen there.
_CALL = """\
import http.client, json, ssl, sys
said = json.load(sys.stdin)
with open("/etc/rocstack/service/service.json", encoding="utf-8") as file:
    settings = json.load(file)
trust = ssl.create_default_context(cafile=settings["certificate"])
trust.check_hostname = False
trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
port = int(settings["listen"].rpartition(":")[2])
connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=50, context=trust)
head = {"Authorization": "Bearer " + said["token"], "Content-Type": "application/json"}
try:
    connection.request(said["method"], said["path"], json.dumps(said["body"]), head)
    answer = connection.getresponse()
    text = answer.read(1 << 20).decode("utf-8", "replace")
except (OSError, http.client.HTTPException) as error:
    sys.exit("it doesn't answer: %s" % error)
print(json.dumps({"status": answer.status, "text": text}))
"""


def post(ssh_host: SshHost, token: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of the service on `ssh_host`.

    Raises:
        BadInput: the service refuses what is asked.
        CheckFailed: the service isn't there, doesn't answer, or can't; ssh doesn't get through.
    """
    said = json.dumps({"token": token, "method": "POST", "path": path, "body": body})
    # -I: nothing of the folder or the environment is imported.
    line = ["docker", "exec", "--interactive", SERVICES["service"], "python3", "-I", "-c", _CALL]
    done = ssh.run(ssh_host, line, text=said)
    if done.returncode == ssh.FAILED:
        raise ssh_host.error("no way to", done.stderr)
    try:
        answer = from_json(done.stdout)
        status, found = int(answer["status"]), dict(from_json(answer["text"]))
        why = "" if status < 400 else str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        why = last_line(done.stderr) or "it says nothing that can be read"
        raise CheckFailed.of("service-silent", control=ssh_host.host, why=visible(why)[:500]) from None
    if status in _REFUSED:
        raise BadInput.of("service-refuses", why=visible(why)[:1000])
    if status >= 400:
        raise CheckFailed.of("service-failed", why=visible(why)[:1000])
    return found
