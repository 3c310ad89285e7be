"""Installs the build into an empty folder, builds a small program against it with
find_package(pliant), once in C++ and once in C, and runs both."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command):
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, timeout=240)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("consumers", nargs="+", help="folders beside this script")
    args = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    # What a launcher set for this test itself must not make the programs join its job.
    for name in [name for name in os.environ if name.startswith("PLIANT_")]:
        if name != "PLIANT_BUILD_DIR":
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="pliant-install-") as scratch:
        prefix = pathlib.Path(scratch, "prefix")
        run(args.cmake, "--install", os.environ["PLIANT_BUILD_DIR"], "--prefix", prefix)
        for consumer in args.consumers:
            build = pathlib.Path(scratch, "build", consumer)
            run(args.cmake, "-S", here / consumer, "-B", build, "-G", "Ninja",
                f"-DCMAKE_PREFIX_PATH={prefix}")
            run(args.cmake, "--build", build)
            run(build / "consumer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
