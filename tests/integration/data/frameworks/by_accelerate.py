"""Each rank has data of its own; gradients are summed, so all have the same weights."""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

accelerator = Accelerator()
rank = accelerator.process_index
torch.manual_seed(rank)  # prepare() gives everybody the weights of the first rank
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.DataLoader([torch.randn(8) for _ in range(1024)], batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for x in data:
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
weights = gather_object([sum(each.sum().item() for each in model.parameters())])
fell = "fell" if sum(losses[-5:]) < sum(losses[:5]) / 2 else "did not fall"
kinds = len(set(weights)) if len(weights) == accelerator.num_processes else "some"
where = f"rank {rank} of {accelerator.num_processes} on {accelerator.device}"
print(f"{where}: weights of {kinds} kind, loss {fell}", flush=True)
accelerator.end_training()
