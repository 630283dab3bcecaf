"""All GPUs send to all, and all to one, over the network; and what the NICs counted meanwhile. The names are those of
mlx5 and bnxt_re in Linux, and of ionic in RCCL's table of NIC counters (plugins and exporters of AMD use the same)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.performance import shares, short, whole

PROGRAM = Path(__file__).parents[1] / "programs/counters.py"
LOADS = {"alltoall_perf": "all to all", "gather_perf": "all to one"}
# Packets that had to be sent again, or were thrown away.
LOST = (
    r"out_of_sequence|packet_seq_err|implied_nak_seq_err|local_ack_timeout_err|roce_adp_retrans",
    r"oos_drop_count|seq_err_naks_rcvd|to_retransmits|missing_resp|rx_roce_discards|tx_roce_discards",
    r"resp_rx_outouf_seq|req_rx_pkt_seq_err|tx_rdma_ack_timeout|tx_rdma_retx_pkts|port_xmit_discards",
)
PAUSED = (r"[rt]x_prio[0-7]_pause", r"[rt]x_pfc_ena_frames_pri[0-7]", r"frames_[rt]x_pripause(?:_?[0-7])?")
MARKED = (
    r"np_ecn_marked_roce_packets|np_cnp_(?:sent|pkts)|rp_cnp_handled|[rt]x_cnp_pkts|rx_ecn_marked_pkts",
    r"[rt]x_rdma_cnp_pkts|rx_rdma_ecn_pkts",
)
BROKEN = (r"req_transport_retries_exceeded|max_retry_exceeded|req_tx_retry_excd_err|link_downed|rx_icrc_encapsulated",)
KINDS = {"lost": "|".join(LOST), "paused": "|".join(PAUSED), "marked": "|".join(MARKED), "broken": "|".join(BROKEN)}


def run(cluster: Any, nodes: list[str]) -> dict[str, Any]:
    got = [node for node in whole(cluster, 15) if node in nodes]
    before = _counted(cluster, got)
    loads = {}
    for tool in LOADS:
        words = [tool, "-b", "64M", "-e", "64M", "-n", "200", "-w", "5", "-c", "0", "-g", "1"]
        options = ["--mpi=pmix", *shares(cluster, cluster.slurm.gpus)]
        step = cluster.slurm.step(*words, nodes=got, tasks=cluster.slurm.gpus, seconds=300, options=options)
        loads[tool] = {"code": step.code, "out": short(f"{step.out}\n{step.err}")}
    found = {"nodes": got, "ranks": cluster.slurm.gpus * len(got), "loads": loads}
    return found | {"before": before, "after": _counted(cluster, got)}


def _counted(cluster: Any, nodes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = cluster.python(PROGRAM, nodes, arguments=["|".join(KINDS.values())])
    return found


def grown(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Device -> name -> by how much; where one counts backwards, its driver began anew. What could not be read before
    is left out: it may have counted since the start."""
    return {
        device: {name: number - before[device][name] for name, number in counters.items() if name in before[device]}
        for device, counters in after.items()
        if device in before
    }


def counts(counters: Mapping[str, int], kind: str) -> bool:
    """Whether a card tells of that kind at all."""
    return any(re.fullmatch(KINDS[kind], name) for name in counters)
