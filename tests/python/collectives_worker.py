"""Every collective against a reference that each rank computes by itself; see base_test.py. Runs as
any number of ranks, with array and memory of the session, and with numpy and torch if asked to."""

import array
import sys
import threading

import pliant

FORMATS = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I",
           "u64": "Q", "f32": "f", "f64": "d"}
REDUCE = {"sum": sum, "min": min, "max": max,
          "mean": lambda values: sum(values) / len(values)}


def value(rank, i):
    """Differs between ranks; four of them fit into i8, and their mean is a whole number."""
    return 4 * (1 + (rank + i) % 5)


def block(rank, count):
    return [value(rank, i) for i in range(count)]


def equal(found, expected):
    assert list(found) == list(expected), (list(found), list(expected))


class Suite:
    """The operations of one session or group, on arrays that `make` makes."""

    def __init__(self, members, dtype, make):
        self.members, self.rank, self.size = members, members.rank, members.size
        self.everybody = range(self.size)
        self.make = lambda values: make(dtype, values)
        self.label = f"{type(members).__name__} {dtype}"

    def run(self):
        for name in sorted(dir(self)):
            if name.startswith("check_"):
                getattr(self, name)()

    def both(self, operation, *arguments, **options):
        """Runs it, and once more asynchronously; gives both outputs."""
        call = getattr(self.members, operation)
        start = getattr(self.members, operation + "_async")
        yield call(f"{self.label} {operation}", *(copy() for copy in arguments), **options)
        work = start(f"{self.label} {operation}", *(copy() for copy in arguments), **options)
        yield work.result()
        assert work.done()
        work.wait()

    def check_all_reduce(self):
        for op, reduce in REDUCE.items():
            expected = [reduce([value(r, i) for r in self.everybody]) for i in range(5)]
            for found in self.both("all_reduce", lambda: self.make(block(self.rank, 5)), op=op):
                equal(found, expected)
            for found in self.both("all_reduce", lambda: self.make(block(self.rank, 5)),
                                   lambda: self.make([0] * 5), op=op):
                equal(found, expected)

    def check_reduce(self):
        for root in self.everybody:
            for found in self.both("reduce", lambda: self.make(block(self.rank, 5)), root=root):
                if self.rank == root:
                    equal(found, [sum(value(r, i) for r in self.everybody) for i in range(5)])

    def check_broadcast(self):
        for root in self.everybody:
            for found in self.both("broadcast", lambda: self.make(block(self.rank, 5)),
                                   root=root):
                equal(found, block(root, 5))

    def check_gathers(self):
        counts = [1 + r % 2 for r in self.everybody]
        flat = [x for r in self.everybody for x in block(r, 3)]
        uneven = [x for r in self.everybody for x in block(r, counts[r])]
        for found in self.both("all_gather", lambda: self.make(block(self.rank, 3)),
                               lambda: self.make([0] * len(flat))):
            equal(found, flat)
        for found in self.both("all_gather", lambda: self.make(block(self.rank,
                                                                     counts[self.rank])),
                               lambda: self.make([0] * len(uneven)), counts=counts):
            equal(found, uneven)
        own = [0] * len(flat)
        own[3 * self.rank:3 * self.rank + 3] = block(self.rank, 3)
        for found in self.both("all_gather", lambda: None, lambda: self.make(own)):
            equal(found, flat)
        root = self.size - 1
        for found in self.both("gather", lambda: self.make(block(self.rank, 3)),
                               lambda: self.make([0] * len(flat)), root=root):
            if self.rank == root:
                equal(found, flat)
        for found in self.both("gather", lambda: self.make(block(self.rank, counts[self.rank])),
                               lambda: self.make([0] * len(uneven)), root=root, counts=counts):
            if self.rank == root:
                equal(found, uneven)

    def check_scatters(self):
        counts = [1 + r % 2 for r in self.everybody]
        whole = self.make(block(0, 3 * self.size))
        for found in self.both("scatter", lambda: whole, lambda: self.make([0] * 3)):
            equal(found, block(0, 3 * self.size)[3 * self.rank:3 * self.rank + 3])
        start = sum(counts[:self.rank])
        for found in self.both("scatter",
                               lambda: self.make(block(0, sum(counts))) if self.rank == 0
                               else None,
                               lambda: self.make([0] * counts[self.rank]), counts=counts):
            equal(found, block(0, sum(counts))[start:start + counts[self.rank]])
        sums = [sum(value(r, i) for r in self.everybody) for i in range(3 * self.size)]
        for found in self.both("reduce_scatter",
                               lambda: self.make(block(self.rank, 3 * self.size)),
                               lambda: self.make([0] * 3)):
            equal(found, sums[3 * self.rank:3 * self.rank + 3])
        for found in self.both("reduce_scatter",
                               lambda: self.make(block(self.rank, sum(counts))),
                               lambda: self.make([0] * counts[self.rank]), counts=counts):
            equal(found, sums[start:start + counts[self.rank]])

    def check_all_to_all(self):
        for found in self.both("all_to_all", lambda: self.make(block(self.rank, 2 * self.size)),
                               lambda: self.make([0] * 2 * self.size)):
            equal(found, [value(r, 2 * self.rank + i) for r in self.everybody for i in range(2)])

    def check_messages(self):
        for _ in self.both("barrier"):
            pass
        if self.size == 1:
            return
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        sent = self.members.send_async(f"{self.label} {self.rank}", self.make(block(self.rank, 4)),
                                       after)
        received = self.members.recv(f"{self.label} {before}", self.make([0] * 4), before)
        equal(received, block(before, 4))
        sent.wait()


def world_alone(session):
    """What there is over the world only."""
    shared = session.all_reduce_shared("shared", array.array("f", block(session.rank, 4)))
    equal(shared, [sum(value(r, i) for r in range(session.size)) for i in range(4)])
    product = session.all_reduce("product", array.array("d", [2]), op=pliant.Op.PROD)
    equal(product, [2 ** session.size])
    assert session.consensus("agree", b"same")
    assert session.consensus("differ", bytes([session.rank])) == (session.size == 1)
    session.save("value", 1, b"one of %d" % session.rank)
    session.save("value", 2, b"two of %d" % session.rank)
    session.barrier("saved")
    peer = (session.rank + 1) % session.size
    assert session.request(peer, "value") == b"two of %d" % peer
    assert session.request(peer, "value", 1) == b"one of %d" % peer
    session.barrier("requested")
    if session.size > 1:
        session.set_strategy("ring")
        assert session.strategy == "ring", session.strategy
        session.set_strategy("auto")
        session.measure_links()
    assert session.explain("all_reduce", 1 << 20)


def without_the_lock(session):
    """While one thread waits in a call, others go on: two ranks meet in a second thread."""
    met = []

    def meet():
        session.barrier("second thread")
        met.append(True)

    thread = threading.Thread(target=meet)
    if session.rank == 0:
        thread.start()
        session.barrier("first thread")
    else:
        session.barrier("first thread")
        thread.start()
    thread.join()
    assert met


def differing_calls(session):
    """An error on every rank, of the right class."""
    if session.size == 1:
        return
    try:
        session.all_reduce("differs", array.array("f", [0] * (1 + session.rank)))
        raise AssertionError("lengths that differ went through")
    except pliant.Invalid as error:
        assert error.code == 6 and error.epoch == 1 and "differs" in str(error), error


def made_by_array(dtype, values):
    return array.array(FORMATS[dtype], [type(array.array(FORMATS[dtype], [0])[0])(v)
                                        for v in values])


def main():
    with pliant.Session() as session:
        def registered(dtype, values):
            memory = session.allocate(len(values), dtype)
            for i, v in enumerate(values):
                memory[i] = v
            return memory

        for dtype in FORMATS:
            Suite(session, dtype, made_by_array).run()
        Suite(session, "f32", registered).run()
        group = session.group(range(session.size)[::-1])
        Suite(group, "i32", made_by_array).run()
        if "torch" in sys.argv:
            import numpy
            import torch
            Suite(session, "float32", lambda dtype, v: numpy.array(v, dtype)).run()
            for dtype in ("float16", "bfloat16", "float32", "float64", "int64", "uint8"):
                Suite(session, dtype,
                      lambda dtype, v: torch.tensor(v, dtype=getattr(torch, dtype))).run()
        world_alone(session)
        without_the_lock(session)
        differing_calls(session)
        view = session.view
        assert (view.rank, view.size, view.epoch) == (session.rank, session.size, 1)
        session.barrier("end")
    print("all right")


main()
