"""torch.distributed over a backend: DDP and every collective that both backends have, written to a
file; and those that only ours has, against a reference. See distributed_test.py."""

import sys

import torch
import torch.distributed as dist

import pliant.torch
from pliant.session import current_session

backend, path = sys.argv[1:3]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
ours = backend == "pliant"
results = {}


def tensor(count, of=rank, dtype=torch.float64):
    return (torch.arange(count) + 10 * of + 1).to(dtype)


def rejected(text, call):
    try:
        call()
        raise AssertionError(f"went through: {text}")
    except pliant.torch.Invalid as error:
        assert text in str(error), error


def collectives(name, group, ranks):
    """What torch offers over a group, by its public functions."""
    place, last = ranks.index(rank), ranks[-1]

    def keep(what, value):
        results[f"{name} {what}"] = value

    for op in ("SUM", "MIN", "MAX", "PRODUCT"):
        value = tensor(5)
        dist.all_reduce(value, op=getattr(dist.ReduceOp, op), group=group)
        keep(op, value)
    for dtype in (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8):
        value = tensor(3, dtype=dtype)
        dist.all_reduce(value, group=group)
        keep(str(dtype), value)
    value = tensor(4).view(2, 2)
    dist.broadcast(value, src=last, group=group)
    keep("broadcast", value)
    value = tensor(4)
    dist.reduce(value, dst=last, group=group)
    if rank == last:
        keep("reduce", value)
    parts = [torch.zeros(2, 3, dtype=torch.float64) for _ in ranks]
    dist.all_gather(parts, tensor(6).view(2, 3), group=group)
    keep("all_gather", parts)
    parts = [torch.zeros(3, dtype=torch.float64) for _ in ranks] if rank == last else None
    dist.gather(tensor(3), parts, dst=last, group=group)
    keep("gather", parts)
    value = torch.zeros(2, dtype=torch.float64)
    dist.scatter(value, [tensor(2, r) for r in ranks] if rank == last else None, src=last,
                 group=group)
    keep("scatter", value)
    dist.barrier(group)
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
    value, other = torch.zeros(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    # The second before the first, which only works if they are asynchronous.
    works = [dist.irecv(other, before, group=group, tag=2),
             dist.irecv(value, before, group=group, tag=1),
             dist.isend(tensor(4), after, group=group, tag=1),
             dist.isend(tensor(2), after, group=group, tag=2)]
    for work in works:
        work.wait()
    keep("messages", [value, other])
    objects = [None] * len(ranks)
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    keep("objects", objects)


def ours_alone():
    """What gloo of torch 1.13 has not."""
    group = dist.distributed_c10d._get_default_group()
    value = tensor(3)
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    assert torch.equal(value, torch.stack([tensor(3, r) for r in range(size)]).mean(0))
    whole = torch.zeros(2 * size, dtype=torch.float64)
    for gather in ("_allgather_base", "all_gather_single"):
        whole.zero_()
        getattr(group, gather)(whole, tensor(2)).wait()
        assert torch.equal(whole, torch.cat([tensor(2, r) for r in range(size)]))
    sums = sum(tensor(2 * size, r) for r in range(size))[2 * rank:2 * rank + 2]
    for scatter in ("_reduce_scatter_base", "reduce_scatter_single"):
        value = torch.zeros(2, dtype=torch.float64)
        getattr(group, scatter)(value, tensor(2 * size)).wait()
        assert torch.equal(value, sums)
    value.zero_()
    dist.reduce_scatter(value, list(tensor(2 * size).split(2)))
    assert torch.equal(value, sums)
    outputs = [torch.zeros(2 * size), torch.zeros(size)]
    group.allgather_into_tensor_coalesced(outputs, [torch.ones(2), torch.ones(1)]).wait()
    assert all(bool(output.all()) for output in outputs)
    outputs = [torch.zeros(1), torch.zeros(2)]
    group.reduce_scatter_tensor_coalesced(outputs, [torch.ones(size),
                                                    torch.ones(2 * size)]).wait()
    assert all(bool((output == size).all()) for output in outputs)
    coalesced = [torch.ones(2), torch.ones(3)]
    assert group.allreduce_coalesced(coalesced).get_future().wait() is not None
    assert all(bool((one == size).all()) for one in coalesced)
    exchanged = torch.zeros(size, dtype=torch.float64)
    for exchange in ("alltoall_base", "all_to_all_single"):
        exchanged.zero_()
        getattr(group, exchange)(exchanged, tensor(size), [], []).wait()
        assert torch.equal(exchanged, torch.stack([tensor(size, r)[rank] for r in range(size)]))
    lengths = [1 + (rank + r) % 2 for r in range(size)]  # what we send to r, and get from it
    uneven = torch.zeros(sum(lengths))
    dist.all_to_all_single(uneven, torch.full((sum(lengths),), float(rank)), lengths, lengths)
    assert uneven.tolist() == [float(r) for r in range(size) for _ in range(lengths[r])]
    outputs = [torch.zeros(length) for length in lengths]
    dist.all_to_all(outputs, [torch.full((length,), float(rank)) for length in lengths])
    assert [output[0].item() for output in outputs] == list(range(size))
    assert (group.name(), group.rank(), group.size()) == ("pliant", rank, size)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    rejected("does not reduce by", lambda: dist.all_reduce(tensor(1, dtype=torch.int64),
                                                           op=dist.ReduceOp.BAND))
    rejected("not contiguous", lambda: dist.all_reduce(torch.zeros(4, 4).t()))
    rejected("from any source", lambda: group.recv_anysource([torch.zeros(1)], 0))
    rejected("differ in length", lambda: group.reduce_scatter(
        [torch.zeros(1)], [[torch.zeros(1 + r) for r in range(size)]]))


def train(hook):
    """DDP, as stock code uses it."""
    torch.manual_seed(5 + rank)  # DDP makes the models equal
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
                                torch.nn.Linear(8, 1)).double()
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001)
    if hook:
        parallel.register_comm_hook(None, pliant.torch.comm_hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    random = torch.Generator().manual_seed(rank)
    for _ in range(20):
        inputs = torch.randn(8, 3, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        parallel(inputs).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_large(hook):
    """Buckets that are worth being moved to registered memory, and their end."""
    torch.manual_seed(3)
    model = torch.nn.Linear(700, 700).double()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    registered = []

    def watched(session, bucket):
        done = pliant.torch.comm_hook(session, bucket)
        registered.append(current_session().is_registered(bucket.buffer()))
        return done

    watched.__annotations__ = pliant.torch.comm_hook.__annotations__
    if hook:
        parallel.register_comm_hook(None, watched)
    for step in range(5):
        parallel(tensor(1400).view(2, 700) + step).pow(2).mean().backward()
    assert not hook or registered == [False] + [True] * 4 or registered == [False] * 2 + [True] * 3
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return gradients


results["trained"] = train(hook=False)
for _ in range(2):
    results["trained in large buckets"] = train_large(hook=ours)
results["trained with the hook"] = train(hook=ours)
collectives("world", None, list(range(size)))
some = [0, size - 1]
group = dist.new_group(some)
twin = dist.new_group(some)  # the same members must not confuse the operations of both
if rank in some:
    collectives("group", group, some)
    collectives("twin", twin, some)
    both = [torch.ones(2), torch.full((2,), 5.0)]
    started = list(zip(both, (group, twin)))
    works = [dist.all_reduce(value, group=one, async_op=True)
             for value, one in (started if rank else started[::-1])]
    for work in works:
        work.wait()
    results["both"] = both
if ours:
    ours_alone()
    for number in range(1200):  # more than there are names
        dist.all_reduce(torch.ones(1))
torch.save(results, f"{path}-{rank}")
dist.barrier()
dist.destroy_process_group()
