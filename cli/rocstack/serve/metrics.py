"""The gateway's numbers for Prometheus, and vLLM's own below them."""

from collections.abc import Iterator

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocstack.serve.gateway import Gateway

MOST = 8 << 20  # bytes of the engine's


class _Numbers(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway, residency = self._gateway, self._gateway.residency
        residents = residency.residents
        yield GaugeMetricFamily(
            "rocstack_serve_engine_up", "1 while the engine answers", gateway.engine.state == "ready"
        )
        yield CounterMetricFamily("rocstack_serve_engine_starts", "Starts of the engine", gateway.engine.starts)
        yield GaugeMetricFamily(
            "rocstack_serve_adapters_registered", "Adapters that can be asked for", gateway.registered
        )
        yield GaugeMetricFamily("rocstack_serve_adapters_resident", "Adapters that are loaded", len(residents))
        yield GaugeMetricFamily("rocstack_serve_adapters_pinned", "Adapters that stay loaded", len(residency.pins))
        running = sum(each.running for each in residents)
        yield GaugeMetricFamily("rocstack_serve_adapter_requests_running", "Requests on adapters", running)
        yield CounterMetricFamily("rocstack_serve_requests", "Requests for an answer", gateway.asked)
        yield CounterMetricFamily("rocstack_serve_adapter_loads", "Adapters loaded", residency.loads)
        yield CounterMetricFamily("rocstack_serve_adapter_unloads", "Adapters unloaded", residency.unloads)
        yield CounterMetricFamily("rocstack_serve_adapter_load_failures", "Loads that failed", residency.failures)


async def text(gateway: Gateway) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Numbers(gateway))
    own = generate_latest(registry)
    if gateway.engine.state != "ready":
        return own
    try:
        answer = await gateway.engine.client.get("/metrics", timeout=10)
    except httpx.HTTPError:
        return own
    return own + answer.content if answer.status_code == 200 and len(answer.content) <= MOST else own
