"""LoRA on conversations by rocstack's trainer and by TRL's SFTTrainer: the same base model, the same adapter to begin
with, the same conversations in the same order. Losses step by step, and the peak memory of each process.

    python tuning.py [--model s] [--steps 20] [--seeds 1,2,3] [--out FILE]

Needs trl, peft and datasets beside the trainer's own packages. Runs on CPUs, one rank, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "images/trainer"), str(ROOT / "images/trainer/tests")]
SHAPES = {"s": (256, 688, 4, 4), "m": (768, 2048, 12, 12)}  # hidden, MLP, layers, heads: 3 and 85 M parameters
BATCH, LENGTH, RANK, RATE = 8, 128, 8, 2e-3


def overrides(folder: Path, steps: int, seed: int, *more: str) -> list[str]:
    pairs = {"model.path": folder / "base", "data.path": folder / "chat.jsonl", "data.seq_len": LENGTH}
    pairs |= {"train.batch": BATCH, "train.steps": steps, "train.lr": RATE, "train.warmup": 0, "train.min_lr": 1}
    pairs |= {"train.seed": seed, "lora.rank": RANK, "lora.alpha": 2 * RANK}
    return [*(f"--{key}={value}" for key, value in pairs.items()), *more]


def prepare(folder: Path, shape: str, seed: int, conversations: int) -> None:
    """A seeded base model with its tokenizer, conversations, and the adapter that both begin with."""
    import chats
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    from rocstack_trainer import cli

    hidden, mlp, layers, heads = SHAPES[shape]
    set_seed(seed)
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads}
    chats.tokenizer(folder / "base", chats.MARKED)
    LlamaForCausalLM(LlamaConfig(vocab_size=260, max_position_embeddings=LENGTH + 1, **sizes)).save_pretrained(
        folder / "base"
    )
    chats.jsonl(folder / "chat.jsonl", chats.conversations(conversations, seed))
    if code := cli.run([*overrides(folder, 0, seed), "--export", str(folder / "begin")]):
        sys.exit(code)


def ours(folder: Path, steps: int, seed: int) -> list[float]:
    from rocstack_trainer import cli

    begin = ("--lora.rank=0", f"--lora.adapter={folder / 'begin'}")
    if code := cli.run(overrides(folder, steps, seed, *begin, f"--output.metrics={folder / 'm.jsonl'}")):
        sys.exit(code)
    return [json.loads(line)["loss"] for line in (folder / "m.jsonl").read_text().splitlines()]


def trl(folder: Path, steps: int, seed: int) -> list[float]:
    """As TRL's documentation has it; the conversations are put into our order first."""
    import numpy as np
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from rocstack_trainer.data.samples import permute

    rows = [json.loads(line) for line in (folder / "chat.jsonl").read_text().splitlines()]
    order = permute(np.arange(steps * BATCH), len(rows), seed, 0)
    net = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    arguments = SFTConfig(
        output_dir=str(folder / "trl"),
        max_length=LENGTH + 1,  # ours counts what goes in: of a longer conversation, one more is a target
        assistant_only_loss=True,
        per_device_train_batch_size=BATCH,
        max_steps=steps,
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
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=seed,
    )
    trainer = SFTTrainer(
        PeftModel.from_pretrained(net, folder / "begin", is_trainable=True),
        arguments,
        train_dataset=Dataset.from_list([rows[i] for i in order]),
        processing_class=AutoTokenizer.from_pretrained(folder / "base"),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def alone(side: str, folder: Path, *words: str) -> dict[str, Any]:
    """A side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="s")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=("prepare", "ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side == "prepare":
        prepare(args.folder, args.model, int(args.seeds), args.steps * BATCH)
        print("{}")
        return
    if args.side:
        losses = {"ours": ours, "trl": trl}[args.side](args.folder, args.steps, int(args.seeds))
        print(json.dumps({"losses": losses, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    result: dict[str, Any] = {"command": " ".join(sys.argv), "model": args.model, "seeds": {}}
    print(
        "| seed | first loss, ours / TRL | last loss | largest difference | peak MB |\n| --- | --- | --- | --- | --- |"
    )
    for seed in args.seeds.split(","):
        words = ("--model", args.model, "--steps", str(args.steps), "--seeds", seed)
        with tempfile.TemporaryDirectory() as folder:
            alone("prepare", Path(folder), *words)
            found = {side: alone(side, Path(folder), *words) for side in ("ours", "trl")}
        one, other = found["ours"]["losses"], found["trl"]["losses"]
        apart = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
        result["seeds"][seed] = found | {"apart": apart, "mean": [fmean(one[-5:]), fmean(other[-5:])]}
        ends = f"{one[0]:.4f} / {other[0]:.4f} | {one[-1]:.4f} / {other[-1]:.4f} | {apart:.2%}"
        print(f"| {seed} | {ends} | {found['ours']['peak_mb']:.0f} / {found['trl']['peak_mb']:.0f} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
