"""What newer torch builds on torch.distributed (FSDP2, DTensor, pipelining), over a backend, on CPU
tensors; results go to a file. See modern_test.py. Of a case that fails the error is written."""

import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               SequenceParallel, parallelize_module)

import pliant.torch  # noqa: F401

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # until 2.5
    from torch.distributed._composable.fsdp import fully_shard

WIDTH, BATCH, STEPS = 16, 8, 5

backend, path = sys.argv[1:3]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()


def network(dtype=torch.float64):
    """The same on every member: blocks of two layers, as transformers have them."""
    torch.manual_seed(3)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH, dtype=dtype)
            self.up = torch.nn.Linear(WIDTH, 2 * WIDTH, dtype=dtype)
            self.down = torch.nn.Linear(2 * WIDTH, WIDTH, dtype=dtype)

        def forward(self, inputs):
            return inputs + self.down(torch.tanh(self.up(self.norm(inputs))))

    return torch.nn.Sequential(*(Block() for _ in range(size)))


def batch(number, dtype=torch.float64):
    """The whole batch of a step."""
    random = torch.Generator().manual_seed(number)
    return torch.randn(BATCH, 4, WIDTH, generator=random, dtype=dtype)


def train(model, part=slice(None), dtype=torch.float64):
    """Some steps; returns the parameters, whole."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(batch(number, dtype)[part]).pow(2).mean().backward()
        optimizer.step()
    return [whole(parameter) for parameter in model.parameters()]


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def share(number, of):
    """One of `of` equal parts of a batch."""
    return slice(number * BATCH // of, (number + 1) * BATCH // of)


def serial():
    return train(network())


def ddp():
    return train(torch.nn.parallel.DistributedDataParallel(network()), share(rank, size))


def sharded(mesh, dtype=torch.float64, **options):
    model = network(dtype)
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp():
    return train(sharded(init_device_mesh("cpu", (size,))), share(rank, size))


def fsdp_kept_whole():
    model = sharded(init_device_mesh("cpu", (size,)), reshard_after_forward=False)
    return train(model, share(rank, size))


def hybrid_fsdp():
    """Shards within halves, and reduces between them."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards"))
    return train(sharded(mesh), share(rank, size))


def tensor_parallel_plan(model, mesh, sequence=False):
    for block in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {"norm": SequenceParallel(),
                    "up": ColwiseParallel(input_layouts=Shard(1)),
                    "down": RowwiseParallel(output_layouts=Shard(1))}
        parallelize_module(block, mesh, plan)
    return model


def tensor_parallel():
    return train(tensor_parallel_plan(network(), init_device_mesh("cpu", (size,))))


def sequence_parallel():
    """Activations are sharded between the layers: gathered before, reduced and scattered after."""
    mesh = init_device_mesh("cpu", (size,))
    model = tensor_parallel_plan(network(), mesh, sequence=True)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, inputs):
            parts = inputs.chunk(size, dim=1)[rank].contiguous()
            output = self.inner(parts)
            output = output.to_local() if isinstance(output, DTensor) else output
            return DTensor.from_local(output, mesh, [Shard(1)]).full_tensor()

    return train(Whole())


def fsdp_of_tensor_parallel():
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    model = tensor_parallel_plan(network(), mesh["tensor"])
    for block in model:
        fully_shard(block, mesh=mesh["data"])
    return train(fully_shard(model, mesh=mesh["data"]), share(rank // (size // 2), 2))


def pipeline(schedule_class):
    """A block a stage; returns the gradients of the own one and the losses."""
    module = network()[rank]
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=lambda output, target:
                              (output - target).pow(2).mean())
    losses = []
    inputs, target = batch(1), batch(2)
    if rank == 0:
        schedule.step(inputs)
    elif rank == size - 1:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    model = network()
    (model(inputs) - target).pow(2).mean().backward()
    expected = [parameter.grad for parameter in model[rank].parameters()]
    found = [parameter.grad for parameter in module.parameters()]
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs)
    return found + [loss.detach() for loss in losses]


def redistribution():
    """DTensor's own moves between layouts."""
    mesh = init_device_mesh("cpu", (size,))
    matrix = torch.arange(size * size * 6, dtype=torch.float64).view(2 * size, 3 * size)
    rows = distribute_tensor(matrix, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    everywhere = columns.redistribute(mesh, [Replicate()])
    uneven = distribute_tensor(torch.arange(size + 1.), mesh, [Shard(0)])
    assert torch.equal(everywhere.to_local(), matrix)
    return [rows.to_local(), columns.to_local(), everywhere.to_local(), whole(rows @ rows.t()),
            whole(uneven), whole(uneven.sum())]


def functional_collectives():
    """Those that DTensor and compiled code call, from C++."""
    group = dist.group.WORLD
    value = torch.arange(2. * size, dtype=torch.float64) + rank
    results = [functional.all_reduce(value, "sum", group),
               functional.all_reduce(value, "max", group),
               functional.all_gather_tensor(value, 0, group),
               functional.reduce_scatter_tensor(value, "sum", 0, group),
               functional.all_to_all_single(value, None, None, group),
               functional.broadcast(value, 1, group)]
    results += functional.all_reduce_coalesced([value, value + 1], "sum", group)
    results += functional.all_gather_into_tensor_coalesced([value, value[:1]], group)
    results += functional.reduce_scatter_tensor_coalesced([value, value * 2], "sum", [0, 0], group)
    lengths = [1 + (rank + other) % 2 for other in range(size)]
    uneven = torch.full((sum(lengths),), float(rank))
    results.append(functional.all_to_all_single(uneven, lengths, lengths, group))
    return [result + 0 for result in results]


def fsdp_with_averages():
    """float32, for which FSDP asks for means, which gloo has not."""
    model = train(sharded(init_device_mesh("cpu", (size,)), torch.float32), share(rank, size),
                  torch.float32)
    for ours, theirs in zip(model, train(network(torch.float32), dtype=torch.float32)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


CASES = {"serial": serial, "ddp": ddp, "fsdp": fsdp, "fsdp_kept_whole": fsdp_kept_whole,
         "hybrid_fsdp": hybrid_fsdp, "tensor_parallel": tensor_parallel,
         "sequence_parallel": sequence_parallel,
         "fsdp_of_tensor_parallel": fsdp_of_tensor_parallel,
         "gpipe": lambda: pipeline(ScheduleGPipe), "1f1b": lambda: pipeline(Schedule1F1B),
         "redistribution": redistribution, "functional": functional_collectives}
if backend == "pliant":
    CASES["fsdp_with_averages"] = fsdp_with_averages

outcome = {}
for name, case in CASES.items():
    try:
        outcome[name] = case()
    except Exception:  # the test says which case it was
        outcome[name] = traceback.format_exc()
torch.save(outcome, f"{path}-{rank}")
dist.barrier()
dist.destroy_process_group()
