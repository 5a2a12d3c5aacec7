"""The memory that code takes at its peak, measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

_STATUS = Path("/proc/self/status")
# Not getrusage's peak, which starts at that of the process that started this one.
_BEGIN = """
import re, torch
from pathlib import Path
torch.set_num_threads(1)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
"""
_END = """
small()
before = peak()
large()
print(peak() - before)
"""


def peak_of_large(program: str, *arguments: str | Path) -> float:
    """Give the megabytes by which ``large()`` of a program raises the peak after ``small()``."""
    if not _STATUS.exists():
        pytest.skip("Linux alone tells the peak")
    command = [sys.executable, "-c", _BEGIN + program + _END, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
