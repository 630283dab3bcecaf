"""What `rocstack size` says of training runs that were published, beside what was measured.

    python bench/sizing [--compile]

The first table has all of them, the second LUMI's scaling: strong with a batch of 768, weak with 8 micro-batches of
each copy; of both, TFLOPS of an MI250X, whose two dies are two GPUs. With --compile a third one has the same runs, of 5
chunks a stage, by the collectives of MaxText's compiled step: 23 s to a minute each, and an image of stack
maxtext-rocm-7.2.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rocstack.size import ask, published
from rocstack.size.search import Tried
from rocstack.steps import size_compile
from rocstack.steps.job_options import SizeOptions

LUMI = published.load()["lumi-140b-48-nodes"]
NODES = (48, 96, 192, 384, 768)
PUBLISHED = {48: "161.2", 768: "129 (80 % of it)"}  # strong scaling, as far as the text has numbers


def runs() -> list[tuple[str, ...]]:
    """Run, GPUs, published value of one, predicted bounds, and the error of their middle."""
    found = []
    for each in published.table():
        run = each.run
        form = "{:,.0f}" if run.unit == "tokens/s" else "{:.1f}"
        value, slow, fast = (form.format(number) for number in (run.published, each.slow, each.fast))
        fitted = " (fitted)" if run.fitted else ""
        error = f"{each.middle * 100:+.0f} %".replace("-", "−")
        gpus = f"{run.degrees.gpus:,} {run.gpu}"
        found.append((each.name, gpus, f"{value} {run.unit}", f"{slow} to {fast}", error + fitted))
    return found


def lumi() -> list[tuple[str, ...]]:
    """Nodes, micro-batches, published, strong without and with interleaving, weak with it."""
    found = []
    for nodes in NODES:
        dp, micro = nodes // 8, 768 * 8 // nodes
        cells = [
            _card({"dp": dp, "accumulate": accumulate, "interleave": chunks})
            for accumulate, chunks in ((micro, 1), (micro, 5), (8, 5))
        ]
        found.append((str(nodes), str(micro), PUBLISHED.get(nodes, ""), *cells))
    return found


def compiled() -> list[tuple[str, ...]]:
    """Nodes, published, strong by formula and by the compiler, weak by both."""
    found = []
    for nodes in NODES:
        cells = []
        for accumulate in (768 * 8 // nodes, 8):
            cells.append(_card({"dp": nodes // 8, "accumulate": accumulate, "interleave": 5}))
            cells.append(_compiled_card(nodes, accumulate))
        found.append((str(nodes), PUBLISHED.get(nodes, ""), *cells))
    return found


def _compiled_card(nodes: int, accumulate: int) -> str:
    asked = SizeOptions(
        model=LUMI.model, gpu=LUMI.gpu, nodes=nodes, seq=LUMI.sequence, tp=8, pp=8, shard=1, micro_batch=1,
        accumulate=accumulate, interleave=5, recompute="none",
    )  # fmt: skip
    sized = ask.size(asked)
    tried = Tried(sized=sized, said=size_compile.compile(sized, None))
    if tried.said.refused:
        return "refused"
    run = LUMI.model_copy(update={"layout": {**LUMI.layout, "dp": nodes // 8, "accumulate": accumulate}})
    each = published.compare("", run, tried.speed)
    return f"{2 * each.slow:.0f} to {2 * each.fast:.0f}"


def _card(degrees: dict[str, int]) -> str:
    run = LUMI.model_copy(update={"layout": {**LUMI.layout, **degrees}})
    each = published.compare("", run)
    return f"{2 * each.slow:.0f} to {2 * each.fast:.0f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args(words)
    print(table(("run", "GPUs", "published, of a GPU", "predicted", "middle"), runs()))
    heads = ("nodes", "micro-batches", "published", "strong", "strong, 5 chunks a stage", "weak, 5 chunks a stage")
    print("\n" + table(heads, lumi()))
    if args.compile:
        heads = ("nodes", "published", "strong, formula", "strong, compiler", "weak, formula", "weak, compiler")
        print("\n" + table(heads, compiled()))


if __name__ == "__main__":
    main()
