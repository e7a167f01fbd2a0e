"""PyTorch's DistributedDataParallel over gloo.

GLOO_SOCKET_IFNAME=lo python ddp.py --net=mlp --task_index=0 --worker_hosts=127.0.0.1:2000,127.0.0.1:2001
"""

import itertools

import task
import torch
from nets import NETS, fixed_batch, read_records
from torch import distributed, nn


def make_net(kernels):
    """The net; a kernel of a convolution is [height, width, in, out], one of a layer [in, out]."""
    modules = []
    for shape in kernels:
        if len(shape) == 4:
            modules += [nn.Conv2d(shape[2], shape[3], shape[0], padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
        else:
            modules += [nn.Flatten(), nn.Linear(*shape), nn.ReLU()]
    net = nn.Sequential(*modules[:-1])
    for module in net:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net


def batches(args):
    """Endless (features, labels)."""
    if len(NETS[args.net].kernels[0]) == 2:
        return itertools.repeat([torch.from_numpy(part) for part in fixed_batch(args.net, args.task_index)])
    images, labels = (
        torch.from_numpy(part[args.task_index :: len(args.worker_hosts)])
        for part in read_records(args.records)
    )
    size = NETS[args.net].batch
    starts = itertools.cycle(range(0, len(labels) - size + 1, size))
    return ((images[at : at + size].permute(0, 3, 1, 2), labels[at : at + size]) for at in starts)


def main():
    """Trains until it is ended."""
    args = task.parse()
    distributed.init_process_group(
        "gloo", f"tcp://{args.worker_hosts[0]}", rank=args.task_index, world_size=len(args.worker_hosts)
    )
    net = nn.parallel.DistributedDataParallel(make_net(NETS[args.net].kernels))
    optimizer = torch.optim.SGD(net.parameters(), NETS[args.net].learning_rate)
    loss_fn = nn.CrossEntropyLoss()
    progress = task.Progress()
    progress.begin()
    for features, labels in batches(args):
        optimizer.zero_grad()
        loss = loss_fn(net(features), labels)
        loss.backward()
        optimizer.step()
        progress.step(loss.detach())


if __name__ == "__main__":
    main()
