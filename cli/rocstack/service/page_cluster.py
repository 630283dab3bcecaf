"""The page of the cluster: its nodes, what the last `rocstack verify` found of them, and a drawing of their devices."""

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from rocstack.cluster.settings import VERIFY
from rocstack.service.identity import Caller
from rocstack.service.page import PageRoute, draw
from rocstack.service.reports import ShownReport
from rocstack.service.routes import Person, Serving
from rocstack.service.service import Service

# A report brings its style with it, and is nothing but a text: it may not even send a form.
ALONE = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; frame-ancestors 'none'; "
    "base-uri 'none'; sandbox"
)
FAILURES, NODES = 12, 200  # checks and nodes that are shown; the whole report and /v1/nodes have all

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/cluster")
async def cluster(request: Request, service: Serving, caller: Person) -> Response:
    reports, problems = await anyio.to_thread.run_sync(service.reports.read)
    drawing = await anyio.to_thread.run_sync(_topology, reports)
    return draw(
        request, "cluster", reports=reports, problems=problems, drawing=drawing, most=FAILURES,
        **await _nodes(service, caller, reports), reservations=await service.slurm.reservations(caller.token),
        qos=await service.slurm.qos(caller.token),
    )  # fmt: skip


@router.get("/cluster/part")
async def cluster_part(request: Request, service: Serving, caller: Person) -> Response:
    reports, _ = await anyio.to_thread.run_sync(service.reports.read)
    return draw(request, "cluster-part", **await _nodes(service, caller, reports))


@router.get("/cluster/reports/{report}")
async def report(service: Serving, caller: Person, report: str) -> Response:
    """The whole of it, as `rocstack verify` writes it."""
    found = await anyio.to_thread.run_sync(service.reports.get, report)
    text = await anyio.to_thread.run_sync(lambda: found.whole)
    return HTMLResponse(text, headers={"Content-Security-Policy": ALONE})


def _topology(reports: list[ShownReport]) -> str:
    """Of the newest report that has one; runs to a low level have none."""
    return next((drawing for each in reports if (drawing := each.topology)), "")


async def _nodes(service: Service, caller: Caller, reports: list[ShownReport]) -> dict[str, Any]:
    found, verified = await service.slurm.nodes(caller.token), reports[0].nodes if reports else {}
    failing = {name for name, each in verified.items() if each.state == "failing"}
    nodes = sorted(found, key=lambda each: (each.usable, each.name not in failing, each.name))  # the odd ones first
    usable = sum(each.usable for each in found)
    return {"nodes": nodes[:NODES], "usable": usable, "all": len(nodes), "verified": verified, "hidden": VERIFY}
