#!/usr/bin/env python3
"""The same change of layout by torch: distributed checkpoint, saved and loaded through files in
memory, DTensors over gloo. Needs torch 2.4 or newer.

    bench/reshard/dcp_torch.py [--np 8] [--layers 24] [--folder /dev/shm]

GPT-3's tensors with AdamW in f32, (dp1, tp) -> (dp2, tp/2) and back; a line of JSON a change.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as processes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError as error:
    sys.exit(f"dcp_torch.py needs torch 2.4 or newer: {error}")


def tensors_of(layers, hidden, vocabulary, positions):
    """Names, shapes and the dimension that tensor parallelism divides."""
    yield "embedding.word", (vocabulary, hidden), 0
    yield "embedding.position", (positions, hidden), None
    for layer in range(layers):
        for name, shape, dim in (("qkv.weight", (3 * hidden, hidden), 0),
                                 ("qkv.bias", (3 * hidden,), 0),
                                 ("proj.weight", (hidden, hidden), 1),
                                 ("proj.bias", (hidden,), None),
                                 ("up.weight", (4 * hidden, hidden), 0),
                                 ("up.bias", (4 * hidden,), 0),
                                 ("down.weight", (hidden, 4 * hidden), 1),
                                 ("down.bias", (hidden,), None),
                                 ("norm1.weight", (hidden,), None),
                                 ("norm1.bias", (hidden,), None),
                                 ("norm2.weight", (hidden,), None),
                                 ("norm2.bias", (hidden,), None)):
            yield f"layers.{layer}.{name}", shape, dim
    yield "norm.weight", (hidden,), None
    yield "norm.bias", (hidden,), None


def make_state(arguments, mesh, value):
    """Parameters and both moments, in the layout of a mesh (dp, tp)."""
    state = {}
    ways = mesh.size(1)
    for name, shape, dim in tensors_of(arguments.layers, arguments.hidden, arguments.vocabulary,
                                       2048):
        local = list(shape)
        if dim is not None:
            local[dim] //= ways
        placement = [Replicate(), Replicate() if dim is None else Shard(dim)]
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            state[f"{kind}.{name}"] = DTensor.from_local(
                torch.full(local, value), mesh, placement, run_check=False)
    return state


def work(rank, arguments, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // arguments.np))
    dist.init_process_group("gloo", rank=rank, world_size=arguments.np)
    meshes = [init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
              for shape in ((1, arguments.np), (2, arguments.np // 2))]
    for change in range(2 * arguments.rounds):
        source, target = meshes[change % 2], meshes[1 - change % 2]
        old = make_state(arguments, source, 1.0)
        new = make_state(arguments, target, 0.0)
        where = os.path.join(folder, str(change))
        dist.barrier()
        began = time.monotonic()
        dcp.save(old, checkpoint_id=where)
        saved = time.monotonic()
        dcp.load(new, checkpoint_id=where)
        dist.barrier()
        ended = time.monotonic()
        if not all(bool((tensor.to_local() == 1.0).all()) for tensor in new.values()):
            raise RuntimeError("a tensor is wrong")
        if rank == 0:
            held = sum(t.to_local().nbytes for t in new.values()) * arguments.np
            print(json.dumps({"from": list(source.mesh.shape), "to": list(target.mesh.shape),
                              "np": arguments.np, "bytes_total": held, "torch": torch.__version__,
                              "seconds": round(ended - began, 4),
                              "save_s": round(saved - began, 4)}), flush=True)
            shutil.rmtree(where)
        dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=51200)
    parser.add_argument("--folder", default="/dev/shm", help="a folder in memory")
    parser.add_argument("--port", type=int, default=29533)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="dcp-") as folder:
        processes.spawn(work, (arguments, folder), nprocs=arguments.np)


if __name__ == "__main__":
    main()
