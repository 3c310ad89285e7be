"""Rank 1 leaves between two steps of DDP; what the other one is told."""

import sys

import torch
import torch.distributed as dist

import pliant.torch

dist.init_process_group("pliant")
parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
if sys.argv[1] == "hook":
    parallel.register_comm_hook(None, pliant.torch.comm_hook)
for step in range(3):
    if step == 2 and dist.get_rank() == 1:
        sys.exit(0)
    try:
        parallel(torch.ones(4, 300)).sum().backward()
    except RuntimeError as error:
        print("backward has failed:", error)
        sys.exit(0)
