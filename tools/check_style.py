#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that need no compiler.

    tools/check_style.py [root]       prints each line that breaks one
    tools/check_style.py --self-test  shows that it would notice
"""

import pathlib
import re
import sys
import tempfile

TOPS = ("pliant", "capi", "cli", "train", "tests", "bench", "examples", "tools", "cmake", "python")
SUFFIXES = (".h", ".cc", ".c", ".py", ".sh", ".cmake", ".txt", ".in", ".map")
PROGRAM_SUFFIXES = (".h", ".cc", ".c", ".py")
COLUMNS_MAX = 100
LINES_MAX = 700

# Written in halves, so that this file passes its own check.
UNDONE = re.compile(r"\b(" + "|".join(["TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK"]) + r")\b")
VAGUE = r"(?:Man" r"ager|Hand" r"ler|Hel" r"per|Ut" r"ils?)"
VAGUE_TYPE = re.compile(
    r"^\s*(?:template\s*<.*>\s*)?(?:class|struct|union|enum(?:\s+class|\s+struct)?|using|concept)"
    r"\s+(?:\[\[.*?\]\]\s*)?(\w*" + VAGUE + r"\w*)")
VAGUE_FILE = re.compile("_?(" + VAGUE.lower() + ")", re.IGNORECASE)


def header_faults(path, lines):
    if not lines or not lines[0].startswith(("//", "/*")):
        yield 1, "a header opens with a comment: what it is, who owns it, which thread calls it"
    is_guarded = any(line.strip() == "#pragma once" for line in lines)
    # The C header may meet compilers that know nothing else.
    if path.startswith("capi/"):
        is_guarded = is_guarded or any(re.match(r"#ifndef PLIANT_\w+", line) for line in lines)
    # A body is text for others to include several times, and says so by its name.
    if not is_guarded and not path.endswith("_body.h"):
        yield 1, "no #pragma once"


def faults_of(path, text):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns; the limit is {COLUMNS_MAX}"
        if "\t" in line:
            yield number, "a tab"
        if line != line.rstrip():
            yield number, "trailing white space"
        if UNDONE.search(line):
            yield number, f"'{UNDONE.search(line)[1]}': finish it or open an issue"
        match = VAGUE_TYPE.match(line)
        if match:
            yield number, f"'{match[1]}' says nothing: name what it does"
    suffix = pathlib.PurePosixPath(path).suffix
    if suffix in PROGRAM_SUFFIXES and len(lines) - 1 > LINES_MAX:
        yield LINES_MAX, f"{len(lines) - 1} lines; the limit is {LINES_MAX}, the aim 500"
    if suffix == ".h":
        yield from header_faults(path, lines)
    if text and not text.endswith("\n"):
        yield len(lines), "no line end at the end"
    match = VAGUE_FILE.search(pathlib.PurePosixPath(path).name)
    if match:
        yield 1, f"a file named '{match[1]}' says nothing: name what it does"


def check(root):
    faults, files = [], 0
    for top in TOPS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in SUFFIXES or not file.is_file() or "/corpus/" in path:
                continue
            files += 1
            faults += [f"{path}:{number}: {fault}" for number, fault in
                       faults_of(path, file.read_text(encoding="utf-8"))]
    return faults, files


def self_test():
    good = "// What it is.\n#pragma once\n"
    vague = "Man" + "ager"
    cases = [
        # file, text, whether it is a fault
        ("pliant/base/a.h", good, False),
        ("pliant/base/a.h", "#pragma once\n", True),
        ("pliant/base/a.h", "// What it is.\n", True),
        ("pliant/base/a_body.h", "// What it is.\n", False),
        ("capi/pliant.h", "/* What it is. */\n#ifndef PLIANT_H\n", False),
        ("pliant/base/a.cc", "int a;\n", False),
        ("pliant/base/a.cc", "int a; \n", True),
        ("pliant/base/a.cc", "\tint a;\n", True),
        ("pliant/base/a.cc", "int a;", True),
        ("pliant/base/a.cc", "x" * 100 + "\n", False),
        ("pliant/base/a.cc", "x" * 101 + "\n", True),
        ("pliant/base/a.cc", "// \u2192" + "x" * 96 + "\n", False),
        ("pliant/base/a.cc", "int a;\n" * 700, False),
        ("pliant/base/a.cc", "int a;\n" * 701, True),
        ("pliant/base/a.cc", "// TO" + "DO: later\n", True),
        ("pliant/base/a.cc", f"class Peer{vague} final {{\n", True),
        ("pliant/base/a.cc", f"  enum class {vague}Kind {{\n", True),
        ("pliant/base/a.cc", f"// A {vague} of ours would say nothing.\n", False),
        ("pliant/base/peer_" + vague.lower() + ".cc", "int a;\n", True),
        ("tools/ut" + "ils.py", "a = 1\n", True),
        ("pliant/base/CMakeLists.txt", "pliant_folder(base)\n", False),
    ]
    for path, text, is_fault in cases:
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch, path)
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
            faults, files = check(pathlib.Path(scratch))
            assert files == 1 and bool(faults) == is_fault, f"{path}: {text[:60]!r}: {faults}"
    print(f"style: {len(cases)} cases judged right")


def main():
    if "--self-test" in sys.argv:
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults, files = check(root)
    print("\n".join(faults + [f"style: {files} files, {len(faults)} faults"]))
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
