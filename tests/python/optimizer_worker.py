"""SynchronousSGD on several ranks; see training_test.py."""

import sys

import torch

import pliant.torch as pliant

session = pliant.current_session()
rank, size = session.rank, session.size


class Two(torch.nn.Module):
    """One half is used by even ranks, the other by odd ones; one part by nobody."""

    def __init__(self):
        super().__init__()
        self.even = torch.nn.Linear(2, 1, bias=False)
        self.odd = torch.nn.Linear(2, 1, bias=False)
        self.nobody = torch.nn.Linear(2, 1, bias=False)
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, inputs):
        return (self.odd if rank % 2 else self.even)(self.norm(inputs)).exp()


def same_everywhere(model):
    for name, tensor in model.state_dict().items():
        assert session.consensus(name, tensor.contiguous()), name


def gradients():
    model = Two()
    seen = []
    decisions = iter(["skip", "apply"])

    def decide(found):
        seen.append(found)
        return next(decisions)

    optimizer = pliant.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=0.1), model,
                                      bucket_bytes=8, on_nonfinite=decide)
    loader = pliant.ElasticLoader(torch.arange(96.).view(48, 2), 12, shuffle=False)
    for number, inputs in enumerate(loader):
        before = model.even.weight.detach().clone()
        optimizer.zero_grad()
        # Two passes, of which the first only adds.
        with optimizer.no_sync():
            (model(inputs).mean() / 2).backward()
        (model(inputs).mean() / 2).backward()
        if number == 1 and rank == 1:
            model.odd.weight.grad[0, 0] = float("nan")
        applied = optimizer.step()
        assert applied == (number != 1), (number, applied)
        assert torch.equal(before, model.even.weight) == (number == 1)
        assert not model.nobody.weight.grad.any()
        same_everywhere(model)
    assert number == 3 and model.norm.num_batches_tracked == 8, model.norm.num_batches_tracked
    assert [(found.step, found.rank, found.tensor) for found in seen] == [(2, 1, "odd.weight")]
    print("all right")


def differing_models():
    model = torch.nn.Sequential(torch.nn.Linear(4 + rank, 3))
    optimizer = pliant.SynchronousSGD(torch.optim.Adam(model.parameters()), model)
    for inputs in pliant.ElasticLoader(torch.zeros(8, 4 + rank), 4):
        model(inputs).mean().backward()
        optimizer.step()
    print("all right")


{"gradients": gradients, "differing_models": differing_models}[sys.argv[1]]()
