"""The ratios that Pliant is to reach, by case, ranks and size."""

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 100 * MIB)

# Against the better of Open MPI and Gloo, on a machine of two cores.
TWO_CORES = {
    "registered": dict(zip(SIZES, (1.3, 4, 5, 5, 7))),
    "plain": dict(zip(SIZES, (1, 1, 1, 1.5, 2.5))),
    "tcp": dict(zip(SIZES, (1, 1, 1.5, 1.4, 1.4))),
}
# The same on a machine of sixteen cores.
SIXTEEN_CORES = {"registered": dict(zip(SIZES, (1, None, 3, 3, 3))), "plain": {}, "tcp": {}}
TABLES = {"two-cores": TWO_CORES, "sixteen-cores": SIXTEEN_CORES}

MEMORY_SHARE = 0.6  # of the memory limit, for registered buffers from 16 MiB up


def against_peers(table, row, np, size):
    return TABLES[table].get(row, {}).get(size) if np > 1 else None


def against_tuned(np, size):
    """Registered buffers against Open MPI tuned by hand."""
    if np == 1 or size < 64 * KIB:
        return None
    if size < 100 * MIB:
        return 4
    return 2.5 if np == 2 else 4


def of_shared_result(np, size):
    """The shared result against the private one."""
    if np == 1 or size < 16 * MIB:
        return None
    return 1.2 if np == 2 else 1.5


def memory_share(row, size):
    return MEMORY_SHARE if row in ("registered", "shared") and size >= 16 * MIB else None
