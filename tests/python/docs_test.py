"""The example, and the programs in README.md and docs/PYTHON.md, run as they are printed."""

import re
import sys
import unittest

from python_job import SOURCE, VARIABLES, environment, need, run

need("torch")


def programs(page):
    """One for each section that has any: its blocks build on each other."""
    text = (SOURCE / page).read_text(encoding="utf-8")
    sections = (re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
                for section in re.split(r"^## ", text, flags=re.MULTILINE))
    return ["\n".join(blocks) for blocks in sections if blocks]


class Docs(unittest.TestCase):
    def check(self, ranks, *command):
        done = run("run", "-n", str(ranks), "--", sys.executable, *command,
                   env=environment(**VARIABLES))
        self.assertEqual(done.returncode, 0, " ".join(command) + done.stdout + done.stderr)
        return done.stdout

    def test_example(self):
        said = self.check(2, str(SOURCE / "examples" / "elastic_digits.py"), "--epochs", "2",
                          "--samples", "640")
        self.assertEqual(said.count("2 workers read"), 2)

    def test_programs(self):
        for page, count in (("README.md", 1), ("docs/PYTHON.md", 3)):
            found = programs(page)
            self.assertEqual(len(found), count, page)
            for program in found:
                self.check(2, "-c", program)


if __name__ == "__main__":
    unittest.main()
