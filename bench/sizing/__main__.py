"""What `rocstack size` says of training runs that were published, beside what was measured.

    python bench/sizing

The first table has all of them, the second LUMI's scaling: strong with a batch of 768, weak with 8 micro-batches of
each copy; of both, TFLOPS of an MI250X, whose two dies are two GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocstack.size import published

LUMI = published.load()["lumi-140b-48-nodes"]
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
    for nodes in (48, 96, 192, 384, 768):
        dp, micro = nodes // 8, 768 * 8 // nodes
        cells = [
            _card({"dp": dp, "accumulate": accumulate, "interleave": chunks})
            for accumulate, chunks in ((micro, 1), (micro, 5), (8, 5))
        ]
        found.append((str(nodes), str(micro), PUBLISHED.get(nodes, ""), *cells))
    return found


def _card(degrees: dict[str, int]) -> str:
    run = LUMI.model_copy(update={"layout": {**LUMI.layout, **degrees}})
    each = published.compare("", run)
    return f"{2 * each.slow:.0f} to {2 * each.fast:.0f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    print(table(("run", "GPUs", "published, of a GPU", "predicted", "middle"), runs()))
    heads = ("nodes", "micro-batches", "published", "strong", "strong, 5 chunks a stage", "weak, 5 chunks a stage")
    print("\n" + table(heads, lumi()))


if __name__ == "__main__":
    main()
