"""The fuzz driver finds a planted bug, keeps the input that shows it, and replays it."""

import pathlib
import subprocess
import sys
import tempfile


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="pliant-fuzz-") as scratch:
        corpus = pathlib.Path(scratch, "corpus")
        corpus.mkdir()
        harmless = corpus / "harmless"
        harmless.write_bytes(b"PL\x01\x02")

        def run(*arguments):
            return subprocess.run([program, *arguments], cwd=scratch, timeout=120,
                                  stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL).returncode

        crash = pathlib.Path(scratch, pathlib.Path(program).name + ".crash")
        assert run(str(harmless)) == 0, "a harmless input must pass"
        assert not crash.exists(), "a clean run must leave nothing behind"
        assert run("--runs", "20000", "--seed", "1", str(corpus)) != 0, "the bug was not found"
        found = crash.read_bytes()
        assert found[:3] == b"PL\xff", f"the kept input is another: {found!r}"
        kept = pathlib.Path(scratch, "kept")
        kept.write_bytes(found)
        assert run(str(kept)) != 0, "the kept input does not reproduce the bug"
        assert run("--runs") == 2 and run("--runs", "many") == 2, "bad options must be refused"


if __name__ == "__main__":
    main()
