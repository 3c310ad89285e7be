"""Trains a small network with SynchronousSGD, through whatever happens; see training_test.py. With
`alone` it writes down the batches of one process instead, for the reference."""

import os
import pathlib
import sys

import torch

import pliant.torch as pliant
from python_worker import await_permission, die_at, note_more, note_ready, record

SAMPLES, BATCH, EPOCHS = 500, 24, 10


def dataset():
    random = torch.Generator().manual_seed(11)
    inputs = torch.randn(SAMPLES, 6, generator=random, dtype=torch.float64)
    return torch.utils.data.TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))


def network():
    """The same in every call; on workers other than the first it is to be overwritten."""
    random = torch.Generator().manual_seed(12)
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 20),
                                torch.nn.Tanh(), torch.nn.Linear(20, 1)).double()
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    return model


def optimizer_of(name, model):
    """Those whose state begins in different ways: moments of zero; a first one without dampening;
    a number that is a power."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    if name == "nadam":
        return torch.optim.NAdam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.5)


def schedule_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.9)


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train(directory, name):
    session = pliant.current_session()
    model = network()
    if session.rank != 0:
        for parameter in model.parameters():
            parameter.data.zero_()
    optimizer = pliant.SynchronousSGD(optimizer_of(name, model), model, bucket_bytes=1024)
    schedule = schedule_of(optimizer)
    session.register_value("schedule", schedule.state_dict, schedule.load_state_dict)
    loader = pliant.ElasticLoader(dataset(), BATCH, seed=3, keep_global_batch=True)
    note_ready(directory)
    with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
        await_permission(directory, session)
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                die_at(directory, session, 8)  # with some gradients handed in
                applied = optimizer.step()
                note_more(directory, session.step)
                if applied:
                    schedule.step()
                    record(file, session, session.step, flat(model).numpy())
                    await_permission(directory, session)
    if loader.epoch == EPOCHS:
        pathlib.Path(directory, f"end-{os.getpid()}").write_bytes(flat(model).numpy().tobytes())


def reference(name):
    """The same training without a word of Pliant but the order of the samples."""
    session = pliant.Session(coordinator="")
    data = dataset()
    session.use_sampler(SAMPLES, BATCH, seed=3, epochs=EPOCHS)
    model = network()
    optimizer = optimizer_of(name, model)
    schedule = schedule_of(optimizer)
    for step in session.steps():
        inputs, targets = data[step.samples]
        step.commit()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
    session.close()
    return flat(model)


if __name__ == "__main__":
    train(*sys.argv[1:3])
