"""Counts in how many committed steps each sample was; see steps_test.py."""

import array
import os
import pathlib
import sys

import pliant
from python_worker import await_permission, die_at, note_more, record

directory, keeps_batch = sys.argv[1], "keep" in sys.argv[2:]
varies_batch = "vary" in sys.argv[2:]
SAMPLES, BATCH, EPOCHS = 600, 16, 4
session = pliant.Session()
counts = array.array("d", bytes(8 * SAMPLES))
notes = {"steps": 0}
session.register_state("counts", counts)
session.register_value("notes", lambda: dict(notes), notes.update)
session.use_sampler(SAMPLES, BATCH, seed=7, epochs=EPOCHS, keep_global_batch=keeps_batch)


def batch_of(number):
    """The batch of a step, if it varies: everybody knows it, and newcomers are told."""
    return BATCH + number // 4 % 7 if number > 1 else BATCH


mine = session.allocate(SAMPLES, "f64")

with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
    await_permission(directory, session)
    for step in session.steps():
        mine[:] = memoryview(bytes(8 * SAMPLES)).cast("d")
        for samples in step:
            note_more(directory, step)
            if keeps_batch:
                die_at(directory, session, 5)
            for sample in samples:
                mine[sample] += 1
            step.all_reduce("counts", mine, op="sum")
        if not step.committed:
            break
        for sample, count in enumerate(step.result("counts")):
            counts[sample] += count
        notes["steps"] += 1
        if varies_batch:
            assert step.contributors.samples <= batch_of(step.number), step.number
            session.set_global_batch(batch_of(step.number + 1))
        assert notes["steps"] == step.number, (notes, step.number)
        assert sum(counts) == session.samples_committed, session.samples_committed
        record(file, session, step, counts)
        if step.number == 3 and session.rank == 0 and "propose" in sys.argv[2:]:
            session.propose_size(3)
        await_permission(directory, session)
if session.samples_committed == SAMPLES * EPOCHS:
    pathlib.Path(directory, f"end-{os.getpid()}").write_bytes(counts.tobytes())
session.close()
