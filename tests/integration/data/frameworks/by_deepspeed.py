"""ZeRO: each rank has data of its own and a part of the optimizer's states."""

import argparse

import deepspeed
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
deepspeed.add_config_arguments(parser)
args = parser.parse_args()
# An operation that DeepSpeed compiles at the start of a job on CPUs: nodes have no compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
torch.manual_seed(dist.get_rank())
losses = []
for _ in range(50):
    x = torch.randn(4, 8)
    loss = (engine(x).squeeze(1) - x.sum(1)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
weights = [0.0] * dist.get_world_size()
dist.all_gather_object(weights, sum(each.sum().item() for each in model.parameters()))
fell = "fell" if sum(losses[-5:]) < sum(losses[:5]) / 2 else "did not fall"
where, stage = f"rank {dist.get_rank()} of {dist.get_world_size()}", engine.zero_optimization_stage()
print(f"{where} with ZeRO {stage}: weights of {len(set(weights))} kind, loss {fell}", flush=True)
dist.barrier()
