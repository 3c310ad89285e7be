"""Counts by gradients in how many committed steps each sample of an ElasticLoader was, and adds up
what was drawn for it; see loader_test.py. `one` loop over all epochs, or a `range` of loops; a
batch of all members together or `scaled` by their number; so many batches are read ahead, by so
many threads."""

import os
import pathlib
import sys
import time

import torch

import pliant.torch as pliant
from python_worker import await_permission, note_ready, record

SAMPLES, EPOCHS, SEED = 120, 3, 11


class Draws:
    """Of each sample its number, and one that is drawn for it."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index, generator=None):
        time.sleep(0.0005)  # so that batches are being read when the view changes
        return index, torch.randint(1 << 20, (), generator=generator)


def main():
    directory, form, batch, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    ahead, threads = int(sys.argv[5]), int(sys.argv[6])
    session = pliant.current_session()
    # The gradient of a sample is one in its own place, and what it drew in another.
    weights = torch.nn.Parameter(torch.zeros(2 * SAMPLES, dtype=torch.float64))
    counts = torch.zeros(2 * SAMPLES, dtype=torch.float64)
    session.register_state("counts", counts)
    optimizer = pliant.SynchronousSGD(torch.optim.SGD([weights], lr=1.0), loss="sum")
    size = {"batch_size_per_member" if kind == "scaled" else "batch_size": batch}
    loader = pliant.ElasticLoader(Draws(), **size, seed=SEED, num_prefetch=ahead, threads=threads,
                                  epochs=EPOCHS if form == "one" else None)

    def count(samples, draws, file):
        optimizer.zero_grad()
        (weights[samples].sum() + (weights[SAMPLES + samples] * draws).sum()).backward()
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
    note_ready(directory)
    with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
        await_permission(directory, session)
        for epoch in range(1 if form == "one" else EPOCHS):
            for samples, draws in loader:
                assert form == "one" or loader.epoch == epoch, (loader.epoch, epoch)
                count(samples, draws, file)
    if loader.epoch == EPOCHS:
        pathlib.Path(directory, f"end-{os.getpid()}").write_bytes(counts.numpy().tobytes())
    if ahead and loader.prefetcher.guessed:
        pathlib.Path(directory, f"ahead-{os.getpid()}").touch()


if __name__ == "__main__":
    main()
