"""On the control node, as root: what Slurm's daemons answer, and how they are set. One JSON value.

Argument: the name of the jobs that are the suite's own.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request

CONTROL = ["docker", "exec", "rocstack-control"]
REST = "http://127.0.0.1:300"
APIS = ("v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39", "v0.0.43", "v0.0.44")  # of Slurm 23.11 to 26.11 and the next
USER = "rocstack-verify"  # who can do the least: another program may have the port
NODE = ("name", "state", "reason", "address", "version", "cpus", "real_memory", "gres", "gres_used")
NODE += ("threads", "slurmd_start_time")


def said(*words):
    try:
        done = subprocess.run([*CONTROL, *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": -1, "out": "", "err": str(error)}
    return {"code": done.returncode, "out": done.stdout.strip(), "err": done.stderr.strip()[-500:]}


def table(*words):
    """Rows of sacctmgr's parsable output."""
    done = said("sacctmgr", "--parsable2", *words)
    if done["code"]:
        return []
    head, *rows = (line.split("|") for line in done["out"].splitlines())
    return [dict(zip(head, row, strict=False)) for row in rows]


def nodes():
    done = said("scontrol", "show", "nodes", "--json")
    try:
        return [{key: row.get(key) for key in NODE} for row in json.loads(done["out"])["nodes"]]
    except (ValueError, KeyError):
        return []


def own(name):
    """Nodes on which jobs of that name have GPUs."""
    said_of = said("squeue", "--all", "--noheader", "--states=running", f"--name={name}", "--format=%N|%b")["out"]
    lists = [row.partition("|")[0] for row in said_of.splitlines() if "gpu" in row.partition("|")[2]]
    return said("scontrol", "show", "hostnames", ",".join(lists))["out"].split() if lists else []


def settings():
    rows = (line.partition("=") for line in said("scontrol", "show", "config")["out"].splitlines())
    return {key.strip(): value.strip() for key, equals, value in rows if equals}


def ask(path, token):
    """HTTP status; or why there is none."""
    headers = {"X-SLURM-USER-NAME": USER, "X-SLURM-USER-TOKEN": token} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(REST + path, headers=headers), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)


def rest():
    """With a token, which is in no argument, and without one."""
    token = said("scontrol", "token", f"username={USER}", "lifespan=60")["out"].partition("=")[2]
    if not token:
        return {"with": "no token", "without": None}
    answers = {api: ask(f"/slurm/{api}/ping", token) for api in APIS}
    api = next((api for api, code in answers.items() if code == 200), APIS[0])
    return {"api": api, "with": answers[api], "without": ask(f"/slurm/{api}/ping", "")}


WANTED = (
    "PriorityType",
    "PriorityWeight",
    "AccountingStorage",
    "EnforcePart",
    "Scheduler",
    "Preempt",
    "TaskPlugin",
    "Constrain",
    "Mpi",
    "Version",
)
known = settings()
print(
    json.dumps(
        {
            "ping": said("scontrol", "ping"),
            "database": said("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=Cluster,ControlHost"),
            "rest": rest(),
            "nodes": nodes(),
            "own": own(sys.argv[1]),
            "settings": {key: value for key, value in known.items() if key.startswith(WANTED)},
            "qos": table("show", "qos", "format=Name,Priority,Preempt,PreemptMode,GraceTime"),
        }
    )
)
