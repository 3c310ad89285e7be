"""The tables that people read."""

TITLES = {
    "registered": "same host, registered buffers, in place: every rank owns its result",
    "shared": "same host, registered buffers, one result that the ranks of the host share",
    "plain": "same host, plain memory, in place",
    "tcp": "TCP only, plain memory, in place (the peers on TCP too)",
}


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_text(micro):
    if micro is None:
        return "-"
    if micro < 10:
        return f"{micro:.2f} us"
    if micro < 1000:
        return f"{micro:.0f} us"
    return f"{micro / 1000:.3g} ms" if micro < 100_000 else f"{micro / 1000:.0f} ms"


def ratio_text(ratio):
    return f"{ratio:.2f}x" if ratio else "-"


def verdict(reached):
    return {True: "ok", False: "short", None: ""}[reached]


def columns(rows):
    """Aligns the first row's titles and the others; the first column to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [text.ljust(width) if i in (0, 4) else text.rjust(width)
                 for i, (text, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def spread(figure):
    if not figure:
        return "-"
    mark = "!" if figure["noisy"] else ""
    return f"{time_text(figure['low_us'])} .. {time_text(figure['high_us'])}{mark}"


def figure_text(figure):
    return time_text(figure["median_us"]) + ("!" if figure["noisy"] else "")


def goal_text(goal):
    return f"{goal:g}x" if goal else ""


def ranks(cell):
    return f"{cell['np']}{'*' if cell['oversubscribed'] else ''}"


def peers_table(cells):
    rows = [("np", "size", "Pliant", "quartiles", "best peer", "its time", "ratio", "of minima",
             "goal", "", "cores", "otherwise")]
    for cell in cells:
        own, best = cell["pliant"], cell["best_peer"]
        goal = cell["goal"] if cell["row"] != "shared" else None
        rows.append((ranks(cell), size_text(cell["bytes"]),
                     time_text(own and own["median_us"]), spread(own), best or "-",
                     figure_text(cell["peers"][best]) if best else "-",
                     ratio_text(cell.get("ratio")), ratio_text(cell.get("ratio_of_minima")),
                     goal_text(goal), verdict(cell["reached"]) if goal else "",
                     cell["cores"] or "mixed", elsewhere_text(cell["elsewhere"])))
    return columns(rows)


def elsewhere_text(other):
    return f"{other['cores']} {ratio_text(other['ratio'])}" if other else ""


def shared_table(cells):
    rows = [("np", "size", "shared", "gain over private", "", "goal", "", "cores")]
    for cell in cells:
        if cell["goal"] and cell["pliant"]:
            rows.append((ranks(cell), size_text(cell["bytes"]),
                         time_text(cell["pliant"]["median_us"]),
                         ratio_text(cell["ratio_to_registered"]), "", goal_text(cell["goal"]),
                         verdict(cell["reached"]), cell["cores"] or "mixed"))
    return columns(rows) if len(rows) > 1 else ""


def tuned_table(cells):
    rows = [("np", "size", "Pliant", "ratio", "best Open MPI, tuned by hand", "its time", "goal",
             "", "cores")]
    for cell in cells:
        tuned = cell.get("tuned")
        if tuned:
            rows.append((ranks(cell), size_text(cell["bytes"]),
                         time_text(tuned["pliant"]["median_us"]), ratio_text(tuned["ratio"]),
                         tuned["best"], time_text(tuned["figure"]["median_us"]),
                         goal_text(tuned["goal"]), verdict(tuned["reached"]),
                         tuned["cores"] or "mixed"))
    return columns(rows) if len(rows) > 1 else ""


def share_text(limit):
    return f"{limit['share'] * 100:.0f} %" if limit and "share" in limit else "-"


def memory_table(cells):
    rows = [("np", "size", "must cross", "Pliant", "row", "memory", "limit", "share",
             "working set", "limit", "share", "goal", "")]
    for cell in cells:
        memory = cell.get("memory")
        if not memory or "memory" not in memory:
            continue
        stream, near, goal = memory["memory"], memory.get("working_set"), memory["goal"]
        reached = stream["share"] >= goal if goal and "share" in stream else None
        rows.append((ranks(cell), size_text(cell["bytes"]), size_text(memory["bytes"]),
                     time_text(stream.get("own_us")), cell["row"],
                     f"{stream['gb_per_second']:.0f} GB/s", time_text(stream["limit_us"]),
                     share_text(stream), f"{near['gb_per_second']:.0f} GB/s" if near else "-",
                     time_text(near and near["limit_us"]), share_text(near),
                     f"{goal * 100:.0f} %" if goal else "", verdict(reached)))
    return columns(rows) if len(rows) > 1 else ""


def preamble(summary):
    machine = summary["machine"]
    lines = [
        f"all-reduce, float32 sum; {machine['cpu']}, {machine['cores']} cores, "
        f"Linux {machine['kernel']}",
        f"{summary['rounds']} interleaved rounds, {summary['runs']} runs in "
        f"{summary['seconds']:.0f} s; times are medians over the batches",
        f"{summary['batches_dropped']} of {summary['batches']} batches dropped: steal above "
        f"{summary['steal_max']} CPU or other programs above {summary['other_max']} "
        "(! = all batches of the cell)",
        f"cores are apart if a cache line takes more than {summary['apart_ns']:.0f} ns from one to "
        "the other; a cell compares",
        "batches of one state alone (mixed: no state in which all were measured); in the other, "
        "see the last column",
    ]
    if summary["touch"]:
        lines.append("touched: each rank writes its input before each call and reads its result, "
                     "which counts")
    if summary["other_cpus"] > summary["other_max"]:
        lines.append(f"NOT IDLE: other programs used {summary['other_cpus']:.1f} CPUs; these "
                     "figures say little")
    lines += [f"absent: {name}: {why}" for name, why in summary["absent"].items()]
    lines += [f"FAILED: {name}: {how}" for name, how in summary["failed"].items()]
    lines.append("* = more ranks than cores")
    return "\n".join(lines)


def render(summary, rows):
    parts = [preamble(summary)]
    for row in rows:
        cells = [cell for cell in summary["cells"] if cell["row"] == row]
        parts.append(f"{TITLES[row]}\n\n{peers_table(cells)}")
        if row == "shared":
            parts.append(shared_table(cells))
        if row == "registered":
            parts.append(tuned_table(cells))
    memory = memory_table(summary["cells"])
    if memory:
        parts.append("share of the memory limit: the bytes that must cross memory, over the best "
                     "streaming bandwidth\nof the same run (through buffers of 100 MiB, and "
                     "through a working set of the cell's size,\nwhich may fit the caches)\n\n"
                     + memory)
    return "\n\n".join(part for part in parts if part) + "\n"
