"""`pip install .` without a network: the package carries the built library and finds it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from python_job import LIBRARY, SOURCE, environment, need

need("pip", "setuptools", "wheel")


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pliant-package-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def install(self, **variables):
        """A copy, because pip leaves files in the tree that it installs."""
        source, target = os.path.join(self.folder, "source"), os.path.join(self.folder, "target")
        shutil.copytree(SOURCE / "python", os.path.join(source, "python"))
        for name in ("pyproject.toml", "setup.py", "README.md"):
            shutil.copy(SOURCE / name, source)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation",
             "--no-deps", "--no-index", "--target", target, source],
            capture_output=True, text=True, check=False, env=environment(**variables))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return target

    def open(self, target):
        return subprocess.run(
            [sys.executable, "-c", "import pliant\nwith pliant.Session() as session: "
             "print(session.size, pliant.__file__)"],
            capture_output=True, text=True, check=False, cwd=self.folder,
            env=environment(PYTHONPATH=target))

    def test_with_the_built_library(self):
        target = self.install(PLIANT_LIBRARY=LIBRARY)
        done = self.open(target)
        self.assertEqual(done.stdout, f"1 {target}/pliant/__init__.py\n", done.stderr)
        self.assertTrue(os.path.exists(os.path.join(target, "pliant", "py.typed")))
        self.assertTrue(os.path.exists(os.path.join(target, "pliant", "torch", "__init__.py")))
        tags = [name for name in os.listdir(target) if name.endswith(".dist-info")]
        with open(os.path.join(target, tags[0], "WHEEL"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r"Tag: py3-none-linux_\w+")

    def test_without_a_library(self):
        target = self.install()
        self.assertTrue(os.path.exists(os.path.join(target, "pliant", "__init__.py")))
        self.assertFalse(os.path.exists(os.path.join(target, "pliant", "libpliant.so.0")))


if __name__ == "__main__":
    unittest.main()
