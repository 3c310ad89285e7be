"""What pyproject.toml cannot say: a libpliant that was built here travels inside of the package.

It is that of PLIANT_LIBRARY, or of build/release. Without either the package has none, and looks
for an installed one when it is imported.
"""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

SONAME = "libpliant.so.0"


def built_library():
    """The file, or None."""
    path = pathlib.Path(os.environ.get("PLIANT_LIBRARY") or
                        pathlib.Path(__file__).resolve().parent / "build" / "release")
    path = path / SONAME if path.is_dir() else path
    return path.resolve() if path.exists() else None


class BuildWithLibrary(build_py):
    """Copies libpliant beside the modules."""

    def run(self):
        super().run()
        found = built_library()
        if found:
            shutil.copy(found, os.path.join(self.build_lib, "pliant", SONAME))


class PlatformWheel(bdist_wheel):
    """With a library inside it is for one platform, but for every Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = self.root_is_pure and not built_library()

    def get_tag(self):
        tag = super().get_tag()
        return ("py3", "none", tag[2])


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
