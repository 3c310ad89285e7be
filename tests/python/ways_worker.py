"""The ways of keeping models together on several ranks; see ways_test.py. `rules` compares each
step with the written rule, in a job of fixed size; `compressed` trains with gradients that are sent
smaller; `elastic` writes down what each member had before and after each step, in a job whose
members come and go."""

import json
import os
import pathlib
import sys

import torch

import pliant.torch as pliant
from python_worker import await_permission, die_at, note_ready, record

ALPHA, RATE, SIZE, STEPS_MAX = 0.25, 0.125, 6, 120


def model_of(seed=5):
    torch.manual_seed(seed)
    return torch.nn.Linear(SIZE - 1, 1).double()


def wrapped(way, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if way == "model_averaging":
        return pliant.ModelAveraging(optimizer, model, alpha=ALPHA)
    if way == "pair_averaging":
        return pliant.PairAveraging(optimizer, model, seed=3)
    if way == "adaptive":
        return pliant.Adaptive(torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5), model,
                               alpha=ALPHA, seed=3)
    return pliant.SynchronousSGD(optimizer, model)


def flat(model):
    """All parameters, as the optimizer has them one behind the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def target(rank, step):
    """What this rank would have the parameters be, in this step."""
    return torch.arange(SIZE, dtype=torch.float64) * (rank + 1) / 7 + step / 16


def backward(model, rank, step):
    """The gradient is the distance from the target; returns it."""
    parameters = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    gradient = flat(model) - target(rank, step)
    (0.5 * (parameters - target(rank, step)).pow(2).sum()).backward()
    return gradient


def everybody(session, name, tensor):
    """The tensor of each rank."""
    found = torch.zeros(session.size, tensor.numel(), dtype=tensor.dtype)
    session.all_gather(name, tensor, found)
    return found


# ---- Rules -------------------------------------------------------------------------------------

def rules(way):
    session = pliant.current_session()
    model = model_of(5 + session.rank)  # a job begins with that of rank 0
    optimizer = wrapped(way, model)
    published = {}
    schedule = {4: "model_averaging", 9: "pair_averaging", 14: "synchronous", 18: "pair_averaging"}
    pulls, momentum = 0, torch.zeros(SIZE, dtype=torch.float64)
    for step in session.steps():
        number = step.number
        before = flat(model)
        models = everybody(session, "before", before)
        optimizer.zero_grad()
        gradient = backward(model, session.rank, number)
        gradients = everybody(session, "gradients", gradient)
        now = optimizer.synchronisation
        assert optimizer.step()
        drawn = before
        equalised = way == "adaptive" and number == 15  # the first synchronous step after others
        if now == "model_averaging":
            drawn = (1 - ALPHA) * before + ALPHA * models.mean(0)
        elif now == "pair_averaging":
            report = optimizer.last_step
            if report.pulled_from is not None:
                assert report.pulled_from != session.rank
                pulls += 1
                drawn = (before + published[report.pulled_version][report.pulled_from]) / 2
        else:
            gradient = gradients.mean(0)
            drawn = models.mean(0) if equalised else before
        if way == "adaptive":
            if equalised:
                momentum = everybody(session, "momentum", momentum).mean(0)
            momentum = gradient.clone() if number == 1 else 0.5 * momentum + gradient
            gradient = momentum
        expected = drawn - RATE * gradient
        torch.testing.assert_close(flat(model), expected, rtol=1e-13, atol=1e-13)
        after = everybody(session, "after", flat(model))
        published[number] = after
        equal = bool((after == after[0]).all())
        assert equal == (now == "synchronous"), (number, now, after)
        if way == "adaptive" and number in schedule:
            optimizer.switch_to(schedule[number])
        session.barrier()
        if number == 22:
            break
    assert pulls > 5 or way in ("model_averaging", "synchronous"), pulls
    print("all right")


def compressed(kind):
    """Gradients of float32 that are sent smaller: models stay equal, and come where they should."""
    session = pliant.current_session()
    model = torch.nn.Linear(SIZE - 1, 1)
    optimizer = pliant.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=RATE), model,
                                      compression=kind)
    for step in session.steps():
        optimizer.zero_grad()
        parameters = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
        (0.5 * (parameters - target(session.rank, 0).float()).pow(2).sum()).backward()
        assert optimizer.step()
        after = everybody(session, "after", flat(model))
        assert bool((after == after[0]).all()), after
        session.barrier()
        if step.number == 80:
            break
    middle = sum(target(rank, 0) for rank in range(session.size)) / session.size
    torch.testing.assert_close(flat(model).double(), middle, rtol=1e-2, atol=1e-2)
    print("all right")


# ---- Elastic -----------------------------------------------------------------------------------

def elastic(directory, way):
    session = pliant.current_session()
    model = model_of()
    optimizer = wrapped(way, model)
    lines = open(pathlib.Path(directory, f"lines-{os.getpid()}"), "a", buffering=1,
                 encoding="ascii")
    note_ready(directory)
    with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
        await_permission(directory, session)
        for step in session.steps():
            optimizer.zero_grad()
            before, gradient = flat(model), backward(model, session.rank, step.number)
            lines.write(json.dumps({"begun": step.number, "before": before.tolist()}) + "\n")
            die_at(directory, session, 8)
            if not optimizer.step():
                break
            report = optimizer.last_step
            lines.write(json.dumps({
                "committed": step.number, "before": before.tolist(), "rank": session.rank,
                "gradient": gradient.tolist(), "after": flat(model).tolist(),
                "contributors": step.contributors.members, "pulled_from": report.pulled_from,
                "pulled_version": report.pulled_version}) + "\n")
            record(file, session, step, flat(model).numpy())
            if step.number >= STEPS_MAX:
                break
            await_permission(directory, session)


if __name__ == "__main__":
    if sys.argv[1] == "rules":
        rules(sys.argv[2])
    elif sys.argv[1] == "compressed":
        compressed(sys.argv[2])
    else:
        elastic(*sys.argv[1:3])
