"""The health of containers that had just started when the nodes were read."""

from __future__ import annotations

from typing import Any

TIMEOUT_S = 45  # seconds: the engine asks a container for its health after 30
_OURS = "--filter label=io.rocstack.service"
_SCRIPT = f"""
for second in $(seq {TIMEOUT_S}); do
    [ -n "$(docker ps --quiet {_OURS} --filter health=starting)" ] || break
    sleep 1
done
docker ps --all {_OURS} --format '{{{{.Names}}}}|{{{{.Status}}}}'
"""


def settle(cluster: Any, nodes: list[str]) -> dict[str, str]:
    """Node -> "healthy", or what isn't."""
    done = cluster.everywhere(_SCRIPT, nodes, TIMEOUT_S + 15)
    return {node: health(output.stdout) or output.stderr.strip() or "no answer" for node, output in done.items()}


def health(text: str) -> str:
    """Of lines such as `rocstack-worker|Up 3 minutes (healthy)`; empty without one."""
    rows = [line.split("|", 1) for line in text.splitlines() if "|" in line]
    wrong = [f"{name.removeprefix('rocstack-')} {status.lower()}" for name, status in rows if "(healthy)" not in status]
    return ", ".join(wrong) or ("healthy" if rows else "")
