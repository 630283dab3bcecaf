"""LoRA on conversations by rocstack's trainer and by TRL's SFTTrainer, or on pairs of them by its DPOTrainer: the same
base model, the same adapter to begin with, the same conversations in the same order. Losses step by step, time of a
step, peak memory of each process.

    python tuning.py [--dpo] [--model s] [--steps 20] [--batch 8] [--seq-len N] [--seeds 1,2,3] [--device cuda]

Needs trl, peft and datasets beside the trainer's own packages. One rank: on a CPU one thread and fp32, on a GPU bf16.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "images/trainer"), str(ROOT / "images/trainer/tests")]
# Hidden, MLP, layers, heads, heads of keys, tokens of a sample, talks joined to one: 3, 85 and 974 M parameters.
SHAPES = {
    "s": (256, 688, 4, 4, 4, 128, 1),
    "m": (768, 2048, 12, 12, 12, 128, 1),
    "1b": (2048, 8192, 16, 32, 8, 1024, 16),
}
RANK, RATE = 8, 2e-3
UNMEASURED = 3  # steps at the start


def overrides(folder: Path, args: argparse.Namespace, steps: int, seed: int, *more: str) -> list[str]:
    pairs = {"model.path": folder / "base", "data.path": folder / "chat.jsonl", "data.seq_len": args.seq_len}
    pairs |= {"train.batch": args.batch, "train.steps": steps, "train.lr": RATE, "train.warmup": 0, "train.min_lr": 1}
    pairs |= {"train.seed": seed, "lora.rank": RANK, "lora.alpha": 2 * RANK}
    pairs |= {"data.layout": "pairs"} if args.dpo else {}
    return [*(f"--{key}={value}" for key, value in pairs.items()), *more]


def prepare(folder: Path, args: argparse.Namespace, seed: int) -> None:
    """A seeded base model with its tokenizer, conversations, and the adapter that both begin with."""
    import chats
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    from rocstack_trainer import cli

    hidden, mlp, layers, heads, kv, _, joined = SHAPES[args.model]
    conversations = args.steps * args.batch
    set_seed(seed)
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv}
    chats.tokenizer(folder / "base", chats.MARKED)
    config = LlamaConfig(vocab_size=260, max_position_embeddings=args.seq_len + 1, **sizes)
    with torch.device(args.device):
        LlamaForCausalLM(config).save_pretrained(folder / "base")
    talks = [each["messages"] for each in chats.conversations(conversations * joined, seed)]
    groups = [talks[i : i + joined] for i in range(0, len(talks), joined)]
    rows = [{"messages": list(itertools.chain.from_iterable(group))} for group in groups]
    rows = chats.pairs(conversations, seed) if args.dpo else rows
    chats.jsonl(folder / "chat.jsonl", rows)
    if code := cli.run([*overrides(folder, args, 0, seed), "--export", str(folder / "begin")]):
        sys.exit(code)


def ours(folder: Path, args: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    from rocstack_trainer import cli

    more = ("--lora.rank=0", f"--lora.adapter={folder / 'begin'}", f"--output.metrics={folder / 'm.jsonl'}")
    more += ("--parallel.backend=gloo",) if args.device == "cpu" else ("--output.every=1",)
    if code := cli.run(overrides(folder, args, args.steps, seed, *more)):
        sys.exit(code)
    lines = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    return {"losses": [line["loss"] for line in lines], "seconds": [line["step_ms"] / 1000 for line in lines]}


def trl(folder: Path, args: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    """As TRL's documentation has it; the conversations are put into our order first."""
    import numpy as np
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from rocstack_trainer.data.samples import permute

    rows = [json.loads(line) for line in (folder / "chat.jsonl").read_text().splitlines()]
    order = permute(np.arange(args.steps * args.batch), len(rows), seed, 0)
    on_gpu = args.device != "cpu"
    net = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16 if on_gpu else torch.float32)
    kind, trainer_of = (DPOConfig, DPOTrainer) if args.dpo else (SFTConfig, SFTTrainer)
    arguments = kind(
        **({} if args.dpo else {"assistant_only_loss": True}),
        output_dir=str(folder / "trl"),
        max_length=args.seq_len + 1,  # ours counts what goes in: of a longer conversation, one more is a target
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not on_gpu,
        bf16=on_gpu,
        disable_tqdm=True,
        seed=seed,
    )
    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if on_gpu:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    trainer = trainer_of(
        PeftModel.from_pretrained(net, folder / "begin", is_trainable=True),
        args=arguments,
        train_dataset=Dataset.from_list([rows[i] for i in order]),
        processing_class=AutoTokenizer.from_pretrained(folder / "base"),
        callbacks=[Clock()],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "seconds": [b - a for a, b in itertools.pairwise(ends)]}


def peak_mb(device: str) -> float:
    """Of the process, or of what it had on its GPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    import torch

    return torch.cuda.max_memory_allocated() / 2**20


def alone(side: str, folder: Path, *words: str) -> dict[str, Any]:
    """A side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), *words]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    if "cuda" not in words:
        env["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="s")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="conversations of a step")
    parser.add_argument("--seq-len", type=int, default=0, help="tokens of a sample; 0: as the model has it")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--dpo", action="store_true", help="pairs of a chosen and a rejected answer")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=("prepare", "ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.seq_len = args.seq_len or SHAPES[args.model][5]
    if args.side == "prepare":
        prepare(args.folder, args, int(args.seeds))
        print("{}")
        return
    if args.side:
        side = {"ours": ours, "trl": trl}[args.side]
        found = side(args.folder, args, int(args.seeds))
        print(json.dumps(found | {"peak_mb": peak_mb(args.device), "cpu_s": time.process_time()}))
        return
    result: dict[str, Any] = {"command": " ".join(sys.argv), "model": args.model, "seeds": {}}
    print("| seed | first loss, ours / TRL | last loss | largest difference | s of a step, median | CPU s | peak MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for seed in args.seeds.split(","):
        words = ("--model", args.model, "--steps", str(args.steps), "--seeds", seed, "--device", args.device)
        words += ("--batch", str(args.batch), "--seq-len", str(args.seq_len), *(["--dpo"] * args.dpo))
        with tempfile.TemporaryDirectory() as folder:
            alone("prepare", Path(folder), *words)
            found = {side: alone(side, Path(folder), *words) for side in ("ours", "trl")}
        first = min(UNMEASURED, args.steps // 2)
        one, other = found["ours"]["losses"], found["trl"]["losses"]
        apart = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
        result["seeds"][seed] = found | {"apart": apart, "mean": [fmean(one[-5:]), fmean(other[-5:])]}
        ends = f"{one[0]:.4f} / {other[0]:.4f} | {one[-1]:.4f} / {other[-1]:.4f} | {apart:.2%}"
        took = " / ".join(f"{median(found[side]['seconds'][first:]):.3f}" for side in found)
        peaks = " / ".join(f"{found[side]['peak_mb']:.0f}" for side in found)
        used = " / ".join(f"{found[side]['cpu_s']:.0f}" for side in found)  # of the whole process, start-up too
        print(f"| {seed} | {ends} | {took} | {used} | {peaks} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
