"""A policy that grows the job, changes the way of keeping models together and stops, by what it has
counted; see policies_test.py. Every member has counted the same after each step."""

import os
import pathlib
import sys

import torch

import pliant.torch as pliant
from python_worker import await_permission, die_at, note_ready, record

# The third member has many steps in which to come.
PLAN = {5: {"members": 3}, 44: {"synchronisation": "model_averaging"},
        48: {"synchronisation": "synchronous", "global_batch": 6}, 56: {"stop": True}}
DEATH = 40


class Plan(pliant.Policy):
    """Decides by the number of steps that it has counted."""

    def before_train(self, now):
        self.state["steps"] = 0

    def after_step(self, now):
        self.state["steps"] += 1
        decided = PLAN.get(self.state["steps"])
        return pliant.Decision(**decided, reason="planned") if decided else None


def main(directory):
    session = pliant.current_session()
    torch.manual_seed(session.rank)
    model = torch.nn.Linear(3, 1).double()
    plan = Plan()
    optimizer = pliant.Adaptive(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5), model,
                                policies=[plan])
    loader = pliant.ElasticLoader(torch.arange(600.).view(200, 3).double() / 600, 12, epochs=9)
    note_ready(directory)
    with open(os.path.join(directory, "records", str(os.getpid())), "wb", buffering=0) as file:
        await_permission(directory, session)
        for inputs in loader:
            number = session.step.number
            expected = "model_averaging" if 44 < number <= 48 else "synchronous"
            assert optimizer.synchronisation == expected, (number, optimizer.synchronisation)
            optimizer.zero_grad()
            loss = model(inputs).pow(2).mean()
            loss.backward()
            optimizer.record_loss(loss)
            die_at(directory, session, DEATH)
            if not optimizer.step():
                break
            now = optimizer.signals
            assert plan.state == {"steps": number} and now.step == number, (plan.state, number)
            assert now.batch == session.step.contributors.samples, now
            assert now.batch <= (6 if number > 48 else 12), now
            bits = torch.tensor([now.loss, now.step_seconds, now.samples_per_second])
            record(file, session, session.step, bits.numpy())
            await_permission(directory, session)
    assert session.decisions.stopped and session.decisions.decided == len(PLAN)
    pathlib.Path(directory, f"end-{os.getpid()}").touch()


if __name__ == "__main__":
    main(sys.argv[1])
