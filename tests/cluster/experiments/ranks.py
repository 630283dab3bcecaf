"""What the ranks of programs/training.py answered, read: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

from states import commonest

FALLS = 0.1  # of the first loss, that the last one must be lower
SOME = 50  # ranks that are compared with each other
LOST = 4  # the exit code of a rank that lost another one
Row = Mapping[str, Any]


def of(training: Mapping[str, Any], *runs: str, node: str = "") -> list[Row]:
    """In the order of their ranks."""
    rows = [row for row in training["answers"] if row["run"] in runs and node in ("", row["node"])]
    return sorted(rows, key=lambda row: (row["node"] if row["run"] == "node" else "", row["rank"]))


def ill(rows: Sequence[Row], ranks: int) -> tuple[str, str, str]:
    """(node, why, what it said) of the rank to blame for a run that didn't end well; empty if it did."""
    bad = sorted((row for row in rows if row["code"]), key=lambda row: row["code"] == LOST)
    if bad:
        words = str(bad[0]["said"]).strip().splitlines() or [f"it ended with {bad[0]['code']}"]
        word = next((line for line in words if line.startswith("error:")), words[-1])
        return bad[0]["node"], f"rank {bad[0]['rank']}: {word.removeprefix('error: ')}", bad[0]["said"]
    if len(rows) < ranks:
        return "", f"{ranks - len(rows)} of {ranks} ranks gave no answer", ""
    return "", "", ""


def unlearned(row: Row) -> str:
    """Why this isn't training; empty if it is."""
    first, last = row["losses"][0], row["losses"][-1]
    if not all(math.isfinite(loss) for loss in row["losses"]):
        return "the loss is not finite"
    return "" if last < (1 - FALLS) * first else f"the loss does not fall: {first:.4f} to {last:.4f}"


def apart(row: Row, other: Row) -> float:
    """The largest share by which the losses of two runs differ."""
    pairs = zip(row["losses"], other["losses"], strict=True)
    return max(abs(one - two) / abs(two) for one, two in pairs)


def speed(row: Row) -> float:
    """Tokens per second, of all ranks."""
    return float(row["tokens"] * len(row["losses"]) / max(row["last"] - row["first"], 1e-6))


def strangers(rows: Sequence[Row]) -> dict[str, str]:
    """Of each node that has a rank whose weights are not those of most in their run, or are those of as many as others
    have, which rank and when."""
    reasons: dict[str, str] = {}
    for when, words in (("before", "at the start"), ("after", "at the end")):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if when in row:
                groups.setdefault(row["node"] if row["run"] == "node" else "", []).append(row)
        for node, group in groups.items():
            usual = commonest(row[when] for row in group)
            run = "of the node's" if node else "of all"
            for row in group:
                if (row[when],) != usual:
                    others = "as many" if row[when] in usual else "most"
                    why = f"rank {row['rank']} of {row['world']} has other weights {words} than {others} {run} ranks"
                    reasons.setdefault(row["node"], why)
    return reasons


def unlike(training: Mapping[str, Any], device: str, near: float, *, to_the_bit: bool) -> tuple[dict[str, float], str]:
    """Node -> by how much its losses differ from those of most on such a device, of those that do, or that end with
    other weights; where half of them do, of all, as then nobody knows whose are right."""
    rows, one = _peers(training, device), alone(training, device)
    shares = {row["node"]: apart(row, one) for row in rows}
    odd = {
        row["node"] for row in rows if not shares[row["node"]] <= near or (to_the_bit and row["after"] != one["after"])
    }
    if odd and 2 * len(odd) >= len(rows):
        return dict.fromkeys(shares, max(shares.values())), "as many"
    return {node: shares[node] for node in odd}, "most"


def _peers(training: Mapping[str, Any], device: str) -> list[Row]:
    """The ranks that trained alone on such a device, and learned."""
    rows = [row for row in of(training, "alone") if "after" in row and device in ("", row["device"])]
    return [row for row in rows if not unlearned(row)] or rows


def alone(training: Mapping[str, Any], device: str = "") -> Row:
    """One rank that trained as most of them did; where all end with other weights, as GPUs may, the one in their
    middle."""
    rows = _peers(training, device)
    usual = commonest(row["after"] for row in rows)
    rows = [row for row in rows if row["after"] in usual][:SOME]
    return min(rows, key=lambda row: median_high(apart(row, other) for other in rows)) if usual[1:] else rows[0]


def misplaced(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """(node, why, how many) of samples that several ranks have, or none."""
    problems, owner = [], dict[int, int]()
    for row in rows:
        twice = [sample for sample in row["ids"] if sample in owner]
        if twice:
            why = f"rank {row['rank']} has {len(twice):,} samples that rank {owner[twice[0]]} has too"
            problems.append((row["node"], why, len(twice)))
        owner |= dict.fromkeys(row["ids"], row["rank"])
    every = range(rows[0]["samples"]) if rows else range(0)
    if missing := len(every) - len(owner.keys() & set(every)):
        problems.append(("", f"{missing:,} of {len(every):,} samples are no rank's", missing))
    return problems
