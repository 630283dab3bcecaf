"""Partitions and nodes, as Slurm told them some seconds ago: each form and each job asks."""

import asyncio
import time
from dataclasses import dataclass

from rocstack.jobs.pools import Pool
from rocstack.service.failures import Away
from rocstack.service.identity import Caller
from rocstack.service.slurm_answers import ClusterNode, map_of, text, whole
from rocstack.service.slurmrest import SlurmRest

FRESH_S = 10.0


@dataclass
class ClusterView:
    slurm: SlurmRest
    _pools: tuple[float, list[Pool]] = (0.0, [])
    _nodes: tuple[float, list[ClusterNode]] = (0.0, [])

    async def nodes(self, caller: Caller) -> list[ClusterNode]:
        """As they were some seconds ago, or last if Slurm doesn't answer.

        Raises:
            Away: it has never answered.
        """
        if self._nodes[0] < time.monotonic():
            try:
                found = await self.slurm.nodes(caller.token)
            except Away:
                if not (found := self._nodes[1]):
                    raise
            self._nodes = (time.monotonic() + FRESH_S, found)
        return self._nodes[1]

    async def pools(self, caller: Caller) -> list[Pool]:
        """The partitions, as they were some seconds ago."""
        until, pools = self._pools
        if until > time.monotonic():
            return pools
        try:
            parts, nodes = await asyncio.gather(self.slurm.partitions(caller.token), self.nodes(caller))
        except Away:
            if pools:  # as they were last: then the job can be kept
                return pools
            raise
        found = []
        for row in parts:
            name = text(row.get("name"))
            there = [node for node in nodes if name in node.partitions]
            counts = {node.gpus for node in there}
            most = max(counts, default=0)
            limit = whole(map_of(row.get("maximums")).get("time"))
            same = counts.pop() if len(counts) == 1 else 0
            found.append(Pool(name, len(there), f"{limit}:00" if limit else "infinite", same, False, most=most))
        if len(found) > 1:  # slurmrestd doesn't say which is the default
            widest, alike = max(each.nodes for each in found), {each.gpus for each in found}
            most = max(each.most or 0 for each in found)
            found.append(Pool("(the default)", widest, "", alike.pop() if len(alike) == 1 else 0, True, most=most))
        self._pools = (time.monotonic() + FRESH_S, found)
        return found
