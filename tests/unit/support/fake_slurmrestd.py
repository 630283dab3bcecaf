"""slurmrestd in the test's process: a few jobs, two nodes, people's tokens; it can go away and lose answers. The forms
of its answers are those of the real one, recorded in tests/unit/service/data."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx

DATA = Path(__file__).parents[1] / "service" / "data"
SERVED = "v0.0.42"


def token(user: str, lifespan: float = 3600, sign: str = "good") -> str:
    """Of a form as Slurm's; `sign` is what the fake looks at instead of a signature."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    body = {"exp": int(now + lifespan), "iat": now, "sun": user}
    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(body)}.{sign}"


def recorded(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


class FakeSlurmrestd:
    def __init__(self) -> None:
        self.jobs: dict[int, dict[str, Any]] = {}
        self.forgotten: dict[int, dict[str, Any]] = {}  # accounting alone knows them
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[tuple[int, str]] = []
        self.calls: list[tuple[str, str]] = []
        self.down = False  # nobody listens
        self.controller_down = False  # slurmrestd answers, slurmctld doesn't
        self.hangs: set[str] = set()  # what is asked there, it doesn't answer; "*": anything
        self.lose = 0  # so many submissions are taken and not answered
        self.refuse = ""  # what Slurm says of a submission
        self.next = 100
        self.nodes = 2
        self.key = b""  # of real tokens; none: there are only those of `token`
        self.address = ""  # of every node, in place of the recorded ones

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._in_time)

    def set(self, number: int, state: str, reason: str = "None", **more: Any) -> None:
        """What the job is from now on."""
        row = self.jobs[number]
        now = int(time.time())
        row["job_state"], row["state_reason"] = [state], reason
        if state != "PENDING" and not row["start_time"]["number"]:
            row["start_time"] = {"set": True, "infinite": False, "number": now}
        if state not in ("PENDING", "RUNNING"):
            row["end_time"] = {"set": True, "infinite": False, "number": now}
        row |= more

    def forget(self, number: int) -> None:
        """slurmctld keeps ended jobs for some minutes."""
        row = self.jobs.pop(number)
        old = deepcopy(recorded("accounting")["jobs"][0])
        old |= {"job_id": number, "user": row["user_name"], "working_directory": row["current_working_directory"]}
        old["name"] = row["name"]
        old["state"] = {"current": row["job_state"], "reason": row["state_reason"]}
        old["time"] |= {name: row[f"{name}_time"]["number"] for name in ("start", "end")}
        old["time"]["submission"] = row["submit_time"]["number"]
        old["exit_code"] = row["exit_code"]
        self.forgotten[number] = old

    async def _in_time(self, request: httpx.Request) -> httpx.Response:
        answer = self._answer(request)
        if {"*", request.url.path.split("/", 3)[-1].rstrip("/")} & self.hangs:
            await asyncio.Event().wait()
        return answer

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append((request.method, path))
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        _, plugin, version, *rest = path.split("/")
        if version != SERVED:
            return httpx.Response(404, text="No such page")
        place = "/".join(rest).rstrip("/")
        given = request.headers.get("x-slurm-user-token", "")
        if not given.endswith(".good") and not self._signed(given):
            return _recorded("bad_token")
        if self.controller_down:
            return _recorded("submit_unanswered" if place == "job/submit" else "controller_down")
        user = json.loads(base64.urlsafe_b64decode(given.split(".")[1] + "=="))["sun"]
        return self._of(request, plugin, place, user)

    def _signed(self, given: str) -> bool:
        """By Slurm's JWT key, as slurmctld looks at it."""
        said, _, signature = given.rpartition(".")
        own = hmac.new(self.key, said.encode(), hashlib.sha256).digest()
        return bool(self.key) and base64.urlsafe_b64encode(own).decode().rstrip("=") == signature

    def _of(self, request: httpx.Request, plugin: str, place: str, user: str) -> httpx.Response:
        if place == "job/submit":
            return self._submit(request, json.loads(request.content), user)
        if place.startswith("job/"):
            number = int(place.removeprefix("job/"))
            known = self.jobs if plugin == "slurm" else self.forgotten
            if request.method == "DELETE":
                return self._cancel(number, parse_qs(request.url.query.decode()))
            if number not in known:
                return _recorded("no_job" if plugin == "slurm" else "no_accounting")
            return _listed([known[number]])
        if place == "jobs":
            rows = self.jobs if plugin == "slurm" else self.forgotten
            return _listed(list(rows.values()))
        found = recorded(place)
        if place == "nodes":
            more = range(len(found["nodes"]) + 1, self.nodes + 1)
            found["nodes"] += [found["nodes"][-1] | {"name": f"n{n}", "address": f"n{n}"} for n in more]
            for node in found["nodes"] if self.address else ():
                node["address"] = self.address
        return httpx.Response(200, json=found)

    def _submit(self, request: httpx.Request, body: dict[str, Any], user: str) -> httpx.Response:
        if self.refuse:
            answer = deepcopy(recorded("refused"))
            answer["body"]["errors"][0]["error"] = self.refuse
            return httpx.Response(answer["status"], json=answer["body"])
        self.submitted.append({**body, "user": user})
        number, self.next = self.next, self.next + 1
        asked, row, now = body["job"], deepcopy(recorded("jobs")["jobs"][0]), int(time.time())
        each = str(asked.get("tres_per_node", "")).removeprefix("gres/gpu:")
        nodes, gpus = int(asked.get("nodes") or 1), int(each) if each.isdigit() else 0
        tres = f"cpu=1,node={nodes}" + (f",gres/gpu={gpus * nodes}" if gpus else "")
        zero = {"set": True, "infinite": False, "number": 0}
        row |= {
            "job_id": number, "user_name": user, "job_state": ["PENDING"], "state_reason": "Resources",
            "comment": asked["comment"], "name": asked["name"], "nodes": "", "start_time": dict(zero),
            "tres_req_str": tres, "tres_alloc_str": tres, "end_time": dict(zero),
            "current_working_directory": asked["current_working_directory"],
            "submit_time": {"set": True, "infinite": False, "number": now},
        }  # fmt: skip
        self.jobs[number] = row
        if self.lose:
            self.lose -= 1
            raise httpx.ReadError("reset", request=request)
        answer = deepcopy(recorded("submitted"))
        return httpx.Response(200, json=answer | {"job_id": number})

    def _cancel(self, number: int, query: dict[str, list[str]]) -> httpx.Response:
        row = self.jobs.get(number)
        if row is None or row["job_state"][0] not in ("PENDING", "RUNNING"):
            return _recorded("cancel_over")
        signal = query.get("signal", [""])[0]
        assert query.get("flags") == (["FULL_STEPS_ONLY"] if signal else None)
        self.cancelled.append((number, signal))
        if not signal:
            self.set(number, "CANCELLED")
        return httpx.Response(200, json=recorded("cancelled"))


def _listed(jobs: list[dict[str, Any]]) -> httpx.Response:
    """What a person gave as a name stands there as it is, whatever its bytes."""
    text = json.dumps({"jobs": jobs, "errors": [], "warnings": []}, ensure_ascii=False)
    return httpx.Response(200, content=text.encode(errors="surrogateescape"))


def _recorded(name: str) -> httpx.Response:
    answer = recorded(name)
    return httpx.Response(answer["status"], json=answer["body"])
