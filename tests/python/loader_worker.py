"""Counts by gradients in how many committed steps each sample of an ElasticLoader was; see
training_test.py. `one` loop over all epochs, or a `range` of loops."""

import os
import pathlib
import sys

import torch

import pliant.torch as pliant
from python_worker import await_permission, note_start, record

directory, form, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
SAMPLES, EPOCHS = 120, 3
note_start(directory)
session = pliant.current_session()
# The gradient of a sample is one in its own place.
weights = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
counts = torch.zeros(SAMPLES, dtype=torch.float64)
session.register_state("counts", counts)
optimizer = pliant.SynchronousSGD(torch.optim.SGD([weights], lr=1.0), loss="sum")
loader = pliant.ElasticLoader(range(SAMPLES), batch, epochs=EPOCHS if form == "one" else None)
entered = []


def count(samples, file):
    optimizer.zero_grad()
    weights[samples].sum().backward()
    if optimizer.step():
        total = session.step.contributors.samples
        counts.add_((weights.grad * total).round())
        record(file, session, session.step, counts.numpy())
        await_permission(directory, session)


def sit_out(step, take_part=session.idle):
    """A step without samples for this member is none of the loop, but counts."""
    take_part(step)
    if step.committed:
        counts.add_((weights.grad * step.contributors.samples).round())


session.idle = sit_out
with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
    await_permission(directory, session)
    for epoch in range(1 if form == "one" else EPOCHS):
        for samples in loader:
            entered.append(epoch)
            assert form == "one" or loader.epoch == epoch, (loader.epoch, epoch)
            count(samples, file)
if loader.epoch == EPOCHS:
    pathlib.Path(directory, f"end-{os.getpid()}").write_bytes(counts.numpy().tobytes())
