"""What transformers says with each adapter, greedily: its matrices are added to the base's, as peft does to merge them,
or by peft itself where it is installed.

    greedy_answers.py [--ids] MODEL TOKENS ADAPTER...     prints {"": base's answer, ADAPTER: its answer}
With --ids an answer is the numbers of its tokens. Nothing ends it before TOKENS.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

HELLO = [{"role": "user", "content": "hello"}]


def answer(model: Any, tokenizer: Any, tokens: int) -> list[int]:
    prompt = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    given = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    model.generation_config.eos_token_id = None
    asked = {name: given[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        out = model.generate(**asked, max_new_tokens=tokens, do_sample=False)
    return [int(each) for each in out[0, given["input_ids"].shape[1] :]]


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


def main(*words: str) -> None:
    ids, (base, tokens, *adapters) = "--ids" in words, [word for word in words if word != "--ids"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    found = {"": answer(plain, tokenizer, int(tokens))}
    for adapter in adapters:
        model = merged(Path(base), Path(adapter))
        found[Path(adapter).name] = answer(model, tokenizer, int(tokens))
    text = {name: tokenizer.decode(each, skip_special_tokens=True) for name, each in found.items()}
    print(json.dumps(found if ids else text))


if __name__ == "__main__":
    main(*sys.argv[1:])
