#!/usr/bin/env python3
"""Checks every #include of the tree against the layers of docs/ARCHITECTURE.md.

    tools/check_layers.py [root]       prints each include that points the wrong way
    tools/check_layers.py --self-test  shows that it would notice
"""

import pathlib
import re
import sys
import tempfile

# Each folder and those it stands on; what these stand on is allowed too.
LAYERS = {
    "base": [],
    "loop": ["base"],
    "transport": ["loop"],
    "collective": ["transport"],
    "membership": ["base"],
    "tensor": ["base"],
    "store": ["tensor", "transport"],
    "data": ["base"],
    "policy": ["membership", "tensor"],
    "runtime": ["collective", "membership", "store", "data", "policy"],
    "training": ["runtime"],
    "sim": ["runtime"],
    "capi": ["training"],
    "cli": ["sim", "training"],
    "train": ["training", "examples"],
    "bench": ["training"],
    "examples": ["training", "capi"],
}

# Siblings that must not know each other, though they are one layer.
STRANGERS = [("pliant/transport/shm", "pliant/transport/tcp")]

# Libraries that stay at the edge: where each may be included.
LIBRARIES = {
    "spdlog": {"base"},
    "CLI": {"cli", "bench", "examples", "train"},
    "boost": {"runtime", "cli"},
    "torch": {"train"},
}

OUTSIDE = ("capi", "cli", "train", "bench", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def allowed_layers(layer):
    allowed, pending = set(), [layer]
    while pending:
        current = pending.pop()
        if current not in allowed:
            allowed.add(current)
            pending += LAYERS[current]
    return allowed


def layer_of(path):
    """The layer of a path from the root, or None if it is not one of ours."""
    parts = pathlib.PurePosixPath(path).parts
    if len(parts) > 2 and parts[0] == "pliant":
        return parts[1]
    if path in ("pliant.h", "capi/pliant.h"):
        return "capi"
    if len(parts) > 1 and parts[0] in OUTSIDE:
        return parts[0]
    return None


def fault_of(root, path, bracket, included):
    """Why the file at `path` may not include `included`, or None."""
    layer = layer_of(path)
    if layer not in LAYERS:
        return f"folder '{layer}' is not in the layer table"
    target = layer_of(included)
    if target is None and bracket == '"':
        beside = pathlib.PurePosixPath(path).parent / included
        if layer in OUTSIDE and (root / beside).exists():
            target = layer_of(str(beside))
        else:
            return "a quoted include is a path from the root of the repository"
    if target is None:
        library = included.split("/")[0]
        if layer not in LIBRARIES.get(library, {layer}):
            return f"{library} is for {', '.join(sorted(LIBRARIES[library]))} alone"
        return None
    if target not in allowed_layers(layer):
        return f"{layer} stands below or beside {target}"
    for one, other in STRANGERS + [pair[::-1] for pair in STRANGERS]:
        if path.startswith(one + "/") and included.startswith(other + "/"):
            return f"{one} and {other} do not know each other"
    return None


def check(root):
    faults, includes = [], 0
    for top in ("pliant",) + OUTSIDE:
        files = [f for f in (root / top).rglob("*") if f.suffix in (".h", ".cc", ".c")]
        for file in sorted(files):
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                includes += 1
                fault = fault_of(root, path, match[1], match[2])
                if fault:
                    faults.append(f"{path}:{number}: includes {match[2]}: {fault}")
    return faults, includes


def self_test():
    cases = [
        # file, line, whether it is a fault
        ("pliant/base/a.h", '#include "pliant/loop/loop.h"', True),
        ("pliant/loop/a.h", '#include "pliant/base/a.h"', False),
        ("pliant/loop/a_test.cc", '#include "pliant/transport/transport.h"', True),
        ("pliant/collective/a.cc", '#include "pliant/loop/loop.h"', False),
        ("pliant/collective/a.cc", '#include "pliant/membership/view.h"', True),
        ("pliant/membership/a.cc", '#include "pliant/loop/loop.h"', True),
        ("pliant/store/a.cc", '#include "pliant/base/a.h"', False),
        ("pliant/policy/a.cc", '#include "pliant/transport/transport.h"', True),
        ("pliant/runtime/a.cc", '#include "pliant/collective/b.h"', False),
        ("pliant/runtime/a.cc", '#include "pliant/sim/b.h"', True),
        ("pliant/runtime/a.cc", '#include "pliant/training/b.h"', True),
        ("pliant/training/a.cc", '#include "pliant/policy/b.h"', False),
        ("pliant/runtime/a.cc", '#  include <pliant/sim/b.h>', True),
        ("pliant/runtime/a.cc", '#include "options.h"', True),
        ("pliant/transport/shm/a.cc", '#include "pliant/transport/tcp/b.h"', True),
        ("pliant/transport/shm/a.cc", '#include "pliant/transport/transport.h"', False),
        ("pliant/gpu/a.cc", '#include "pliant/base/a.h"', True),
        ("pliant/tensor/a.cc", "#include <torch/torch.h>", True),
        ("pliant/tensor/a.cc", "#include <vector>", False),
        ("cli/main.cc", '#include "capi/pliant.h"', True),
        ("cli/main.cc", "#include <CLI/CLI.hpp>", False),
        ("capi/a.cc", '#include "pliant/runtime/session.h"', False),
        ("examples/a.c", "#include <pliant.h>", False),
        ("pliant/base/b.h", "// #include \"pliant/loop/loop.h\"", False),
    ]
    for path, line, is_fault in cases:
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch, path)
            file.parent.mkdir(parents=True)
            file.write_text(line + "\n")
            faults, _ = check(pathlib.Path(scratch))
            assert bool(faults) == is_fault, f"{path}: {line}: judged {faults}"
    print(f"layers: {len(cases)} cases judged right")


def main():
    if "--self-test" in sys.argv:
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults, includes = check(root)
    print("\n".join(faults + [f"layers: {includes} includes, {len(faults)} faults"]))
    return 1 if faults or includes == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
