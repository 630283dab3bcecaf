"""What transformers says with each adapter, greedily: its matrices are added to the base's, as peft does to merge them,
or by peft itself where it is installed.

    greedy_answers.py MODEL TOKENS ADAPTER...     prints {"": base's answer, ADAPTER: its answer}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "user: hello\nassistant: "


def answer(model: Any, tokenizer: Any, tokens: int) -> str:
    given = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(**given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return str(tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))


def merged(base: Path, adapter: Path) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        PeftModel = None
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if PeftModel:
        return PeftModel.from_pretrained(model, adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            layer = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            b = tensors[name.replace("lora_A", "lora_B")]
            layer.weight.data += config["lora_alpha"] / config["r"] * (b @ a)
    return model


def main(base: str, tokens: str, *adapters: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    found = {"": answer(plain, tokenizer, int(tokens))}
    for adapter in adapters:
        found[Path(adapter).name] = answer(merged(Path(base), Path(adapter)), tokenizer, int(tokens))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
