"""The page docs/command-line.md: its commands run from top to bottom, and its tables are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketq import LocalCluster
from rocketq.cli.terminal.exit_codes import EXIT_CODES

PAGE: Final = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def test_the_commands_of_the_page_run_from_top_to_bottom(cluster: LocalCluster) -> None:
    shell = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "ROCKETQ_NAMESERVERS": ",".join(cluster.nameservers)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", shell], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "k-1 one\n" in done.stdout


def test_the_exit_codes_of_the_page_are_those_of_errors() -> None:
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert shown == {0, 1, 10, 130} | {code for _, code in EXIT_CODES}
