#!/usr/bin/env python3
"""Makes torch_2_11.tar.gz, the checkpoints that convert_test.py reads; needs torch 2.11.

    make_torch_files.py torch_2_11.tar.gz

all.safetensors is the truth: what the other files hold, written by safetensors for Python.
"""

import collections
import os
import pathlib
import sys
import tarfile
import tempfile

import torch
import torch.distributed as distributed
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

RANKS = 4


def state():
    torch.manual_seed(1)
    normal = torch.randn
    return {"w": normal(7, 6), "c": normal(5, 8).bfloat16(), "b": normal(6).half(),
            "h": normal(3, 4, 5, dtype=torch.float64), "i": torch.arange(10),
            "g": torch.tensor([True, False, True]), "s": torch.tensor(3.5),
            "z": torch.zeros(0, 3), "q": normal(4, 4).to(torch.float8_e4m3fn),
            "p": normal(4, 2).to(torch.float8_e5m2),
            "u": torch.tensor([1, 2, 65535], dtype=torch.uint16)}


def save_sharded(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29511")
    distributed.init_process_group("gloo")
    line = init_device_mesh("cpu", (RANKS,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    model = state()
    model.update(w=distribute_tensor(model["w"], line, [Shard(0)]),
                 c=distribute_tensor(model["c"], line, [Shard(1)]),
                 h=distribute_tensor(model["h"], square, [Shard(0), Shard(2)]))
    optimizer = {"step": 7, "lr": 1e-3, "name": "adamw", "betas": (0.9, 0.95),
                 "pg": [{"lr": 0.1}]}
    dcp.save({"model": model, "opt": optimizer}, checkpoint_id=folder + "/dcp")
    # The types that torch's reader of safetensors knows.
    dcp.save({name: model[name] for name in "wcbhi"},
             storage_writer=dcp.HuggingFaceStorageWriter(path=folder + "/hf",
                                                         save_distributed=True))
    distributed.barrier()
    distributed.destroy_process_group()


def save_files(folder):
    model, linear = state(), torch.nn.Linear(3, 2)
    whole = model["w"]
    save_file(model, folder + "/all.safetensors", metadata={"format": "pt"})
    torch.save({"model": model, "lin": linear.state_dict(),
                "par": torch.nn.Parameter(whole[:2]), "t": whole.t(), "row": whole[3],
                "same": whole, "ex": torch.ones(1, 3).expand(4, 3), "n": 5, "l": [1, 2.5, None],
                "od": collections.OrderedDict(a=1), "sz": whole.shape, "dt": torch.float32,
                "big": 1 << 80}, folder + "/a.pt")
    torch.save(whole, folder + "/one.pt")
    torch.save({"t": whole}, folder + "/old.pt", _use_new_zipfile_serialization=False)
    save_file({"t": whole.t().contiguous(), "row": whole[3].clone(),
               "lw": linear.weight.detach(), "lb": linear.bias.detach()},
              folder + "/views.safetensors")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(pathlib.Path(scratch, "torch_2_11"))
        os.makedirs(folder)
        save_files(folder)
        torch.multiprocessing.spawn(save_sharded, args=(folder,), nprocs=RANKS)
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            archive.add(folder, "torch_2_11")


if __name__ == "__main__":
    main()
