"""The scenes: that they are those of the committed figures."""

import hashlib
import subprocess
import sys
from pathlib import Path

from recipes.data import scenes

SHA256 = "dd578b362e1ad53416ecd4af2a59d857e3c860f437d1068a9ca6c9609dea4983"


def test_the_table_is_that_of_the_committed_figures():
    command = [sys.executable, "-X", "utf8", "-m", "recipes.data.scenes"]
    root = Path(scenes.__file__).parents[2]
    printed = subprocess.run(command, cwd=root, check=True, timeout=60, capture_output=True).stdout
    assert hashlib.sha256(printed.replace(b"\r\n", b"\n")).hexdigest() == SHA256
