from __future__ import annotations

import subprocess
import sys

CODE = """
from rich.text import Text
from orchestrator.reporting.consoles import open_consoles
out, err = open_consoles()
for number in range(20000):
    out.print(Text(f"line {number}"))
err.print("still here")
"""


def test_a_reader_that_leaves_does_not_end_the_run() -> None:
    driver = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "line 0\n"
    driver.stdout.close()
    assert driver.stderr is not None
    assert driver.stderr.read() == "still here\n"
    driver.stderr.close()
    assert driver.wait() == 0


def test_a_full_disk_under_the_log_does_not_end_the_run() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", CODE], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "still here\n")
