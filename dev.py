"""Everything a developer runs, from a fresh clone on: python3 dev.py COMMAND [ARGUMENTS].

    setup       make .venv with the locked versions; every other command does it first if needed
    demo        336,776 flights through two brokers and Spark, counted (under 90 s)
    test        the tests but for the slow ones; arguments go to pytest
    test-slow   the slow ones: faults, soak and scale; and more examples of each property
    check       lint, format, types, import rules
    bench       the benchmarks; arguments go to them
    bench-peers  the same work on Kafka (needs Java, Maven and the network)
    pages       write docs/documents.md and the tables of docs/configuration.md anew, from the code
    docs        the documents as a site with search, in docs/_build/html
    notebook    JupyterLab on notebooks/ (installed on first use)

It needs Python 3.11 or newer and nothing else; uv is used if it is there, else pip.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time

OLDEST = (3, 11)
ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
BIN = os.path.join(VENV, "bin")
PYTHON = os.path.join(BIN, "python")
LOCK = os.path.join(ROOT, "requirements", "dev.txt")
IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0
STAMP = os.path.join(VENV, ".rocketq-installed")

PYTEST = [PYTHON, "-m", "pytest"]
COMMANDS = {
    "setup": [],
    "demo": [[PYTHON, "-m", "rocketq.cli.main", "demo"]],
    "test": [[*PYTEST, "-m", "not slow", "-n", "4"]],
    "test-slow": [[*PYTEST, "-m", "slow or hypothesis", "--hypothesis-profile", "thorough"]],
    "check": [
        [PYTHON, "-m", "ruff", "check", "."],
        [PYTHON, "-m", "ruff", "format", "--check", "."],
        [PYTHON, "-m", "mypy"],
        [os.path.join(BIN, "lint-imports")],
    ],
    "docs": [[PYTHON, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "docs/_build/html"]],
    "bench": [[PYTHON, "-m", "benchmarks"]],
    "bench-peers": [[PYTHON, "-m", "benchmarks.peers"]],
    "pages": [
        [PYTHON, "-m", "tests.support.configuration_page"],
        [PYTHON, "-m", "tests.support.documents_page"],
    ],
    "notebook": [
        # Root, as in a container, has to say that it means it.
        [PYTHON, "-m", "jupyterlab", *(["--allow-root"] if IS_ROOT else []), os.path.join(ROOT, "notebooks")],
    ],
}


def stop(message):
    print("dev.py: " + message, file=sys.stderr)
    sys.exit(1)


def run(command, quiet=False, env=None):
    """Run a step; say how long it took; end with its exit code if it failed."""
    shown = " ".join(os.path.relpath(part, ROOT) if part.startswith(ROOT) else part for part in command)
    print("==> " + shown, file=sys.stderr)
    started = time.time()
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr if quiet else None)
    print(f"    {time.time() - started:.1f} s", file=sys.stderr)
    return done.returncode


def is_modern(python):
    """Whether this file is a Python that runs and is new enough; pyenv's stand-ins may be neither."""
    asked = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    return (
        os.access(python, os.X_OK) and subprocess.call([python, "-c", asked], stderr=subprocess.DEVNULL) == 0
    )


def modern_python():
    """Return a Python that is new enough: this one, or the first found that really is."""
    if sys.version_info >= OLDEST:
        return sys.executable
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders += ["/usr/local/bin", "/usr/bin", "/opt/homebrew/bin", os.path.expanduser("~/.local/bin")]
    for base in (os.path.expanduser("~/.pyenv/versions"), os.path.expanduser("~/.local/share/uv/python")):
        versions = sorted(os.listdir(base), reverse=True) if os.path.isdir(base) else []
        folders += [os.path.join(base, version, "bin") for version in versions]
    names = [f"python3.{minor}" for minor in range(14, OLDEST[1] - 1, -1)] + ["python3", "python"]
    for found in (os.path.join(folder, name) for name in names for folder in folders):
        if os.path.isfile(found) and is_modern(found):
            return found
    return stop(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this is {sys.version.split()[0]}, and no\n"
        "newer one was found. Install one (python.org, a package manager, `uv python install 3.12`), then:\n"
        "  python3.12 dev.py setup"
    )


def fingerprint():
    """What the environment was made from: if it is unchanged there is nothing to install."""
    digest = hashlib.sha256(ROOT.encode())
    for path in (LOCK, os.path.join(ROOT, "pyproject.toml")):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def installed():
    """Whether .venv runs and was made from the present lock file and pyproject."""
    if not (os.path.exists(STAMP) and os.access(PYTHON, os.X_OK)):
        return False
    with open(STAMP) as file:
        return file.read() == fingerprint()


def make_venv(uv):
    """Make .venv; return the command that installs packages into it."""
    if uv:
        if not is_modern(PYTHON) and run(
            [uv, "venv", "--clear", "--quiet", "--python", sys.executable, VENV]
        ):
            stop("uv could not make .venv.")
        return [uv, "pip", "install", "--python", PYTHON, "--quiet"]
    made = is_modern(PYTHON) or not run([sys.executable, "-m", "venv", "--clear", VENV], quiet=True)
    # Debian keeps ensurepip in a package of its own; this Python's own pip can serve .venv, too.
    if not made and run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV]):
        stop("this Python cannot make virtual environments. Install uv, or python3-venv, and try again.")
    if subprocess.call([PYTHON, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0:
        return [PYTHON, "-m", "pip", "install", "--quiet"]
    if subprocess.call([sys.executable, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0:
        return [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet"]
    return stop("there is no pip. Install uv, or your system's python3-venv package, and run this again.")


def setup():
    """Bring .venv to the locked versions with the project itself editable."""
    if installed():
        return
    install = make_venv(shutil.which("uv"))
    if run([*install, "-r", LOCK]):
        stop("the locked packages could not be installed; is the network there?")
    if run([*install, "--no-deps", "--no-build-isolation", "-e", ROOT]):
        stop("the project itself could not be installed.")
    with open(STAMP, "w") as file:
        file.write(fingerprint())


def install_jupyterlab():
    """Install it if it is missing, with whatever installs packages here: .venv need not have a pip."""
    if subprocess.call([PYTHON, "-c", "import jupyterlab"], stderr=subprocess.DEVNULL) == 0:
        return
    if run([*make_venv(shutil.which("uv")), "jupyterlab>=4.4,<5"]):
        stop("JupyterLab could not be installed; is the network there?")


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        asked_for_help = len(sys.argv) > 1 and sys.argv[1] in ("help", "-h", "--help")
        print(__doc__.strip(), file=sys.stdout if asked_for_help else sys.stderr)
        sys.exit(0 if asked_for_help else 2)
    python = modern_python()
    if python != sys.executable:
        os.execv(python, [python, *sys.argv])
    setup()
    env = dict(os.environ, PATH=os.pathsep.join([BIN, os.environ.get("PATH", os.defpath)]), VIRTUAL_ENV=VENV)
    env.pop("PYTHONHOME", None)
    if sys.argv[1] == "notebook":
        install_jupyterlab()
    steps = COMMANDS[sys.argv[1]]
    for number, step in enumerate(steps, 1):
        last = number == len(steps)
        code = run([*step, *(sys.argv[2:] if last else [])], env=env)
        if code:
            sys.exit(code)
    if sys.argv[1] == "docs":
        print(
            "the site: file://" + os.path.join(ROOT, "docs", "_build", "html", "index.html"), file=sys.stderr
        )
    if not steps:
        print("ready. Next: python3 dev.py demo | test | check", file=sys.stderr)


if __name__ == "__main__":
    main()
