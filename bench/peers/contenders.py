"""Who takes part in the comparison, and the command lines that start each of them."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

UCX = ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any",
       "--mca", "opal_common_ucx_devices", "any"]
OB1 = ["--mca", "pml", "ob1"]
TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]


@dataclass(frozen=True)
class Contender:
    name: str
    kind: str  # which driver: pliant, openmpi, gloo or memory
    launch: tuple = ()  # arguments of the launcher
    arguments: tuple = ()  # arguments of the driver


@dataclass
class Programs:
    """Where the drivers and the launchers are; a contender whose programs are missing is absent."""

    drivers: Path
    pliant: Path
    mpirun: str = field(default_factory=lambda: shutil.which("mpirun") or "")

    def driver(self, kind):
        name = {"openmpi": "mpi_driver"}.get(kind, f"{kind}_driver")
        return self.drivers / name

    def missing(self, contender):
        """What the contender lacks on this machine, or None."""
        if contender.kind == "pliant" and not self.pliant.exists():
            return f"no launcher at {self.pliant}"
        if contender.kind == "openmpi" and not self.mpirun:
            return "mpirun is not installed"
        if not self.driver(contender.kind).exists():
            return f"no driver at {self.driver(contender.kind)}"
        return None


def add_program_options(parser):
    build = REPOSITORY / "build" / "release"
    parser.add_argument("--drivers", type=Path, default=build / "bench" / "peers", metavar="DIR",
                        help="where the drivers were built (default: %(default)s)")
    parser.add_argument("--pliant", type=Path, default=build / "pliant", metavar="FILE",
                        help="the pliant program (default: %(default)s)")


def programs(options):
    return Programs(drivers=options.drivers.resolve(), pliant=options.pliant.resolve())


def pliant(row):
    if row == "tcp":
        return Contender("pliant-tcp", "pliant", ("--transport", "tcp"), ("--buffer", "plain"))
    return Contender(f"pliant-{row}", "pliant", (), ("--buffer", row))


def gloo(algorithm):
    return Contender(f"gloo-{algorithm}", "gloo", (), ("--algorithm", algorithm))


def openmpi(name, *launch):
    return Contender(name, "openmpi", tuple(launch))


MEMORY = Contender("memory", "memory")
GLOO = [gloo("ring"), gloo("halving-doubling"), gloo("bcube")]
OPENMPI = [openmpi("openmpi"), openmpi("openmpi-ucx", *UCX)]
OPENMPI_TCP = openmpi("openmpi-tcp", *TCP)


def tuned_openmpi():
    """Open MPI with each of its all-reduce algorithms forced, over both of its message layers."""
    variants = [(k, None) for k in (1, 2, 3, 4, 6)]
    variants += [(5, segment) for segment in (256 << 10, 512 << 10, 1 << 20)]
    found = []
    for layer, flags in (("ob1", OB1), ("ucx", UCX)):
        for algorithm, segment in variants:
            name = f"openmpi-{layer}-alg{algorithm}"
            launch = flags + ["--mca", "coll_tuned_use_dynamic_rules", "1",
                              "--mca", "coll_tuned_allreduce_algorithm", str(algorithm)]
            if segment:
                name += f"-{segment >> 10}K"
                launch += ["--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(segment)]
            found.append(openmpi(name, *launch))
    return found


def peers_of(row):
    """The contenders that Pliant is compared with in this row."""
    return [OPENMPI_TCP, *GLOO] if row == "tcp" else [*OPENMPI, *GLOO]


def mpirun(program, launch=()):
    command = [program, "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return command + list(launch)


def commands(contender, where, np, arguments, scratch):
    """The command lines of one group of `np` ranks; `scratch` is an empty folder of its own."""
    driver = [str(where.driver(contender.kind)), "--name", contender.name]
    driver += list(contender.arguments) + list(arguments)
    if contender.kind == "pliant":
        launch = [str(where.pliant), "run", "-n", str(np), "--no-prefix", *contender.launch, "--"]
        return [launch + driver]
    if contender.kind == "openmpi":
        return [mpirun(where.mpirun, contender.launch) + ["-np", str(np)] + driver]
    if contender.kind == "gloo":
        return [driver + ["--store", scratch, "--rank", str(rank), "--size", str(np)]
                for rank in range(np)]
    return [driver + ["--np", str(np)]]
