"""The parent of broker processes that are meant to be killed: `python -m tests.support.crash_nursery`.

Importing FastAPI and Arrow takes a second or two, and a test kills a broker
hundreds of times. So one process imports everything and forks: each child runs
`rocketq_broker.__main__.main`, the whole of it, in a process and a session of its
own. One line of JSON on stdin (the broker's arguments) starts one; `{"forked": pid}`,
the broker's own announcement, and in the end `{"ended": pid}` come on stdout.
"""

from __future__ import annotations

import json
import os
import sys

from rocketq_broker import __main__ as broker
from rocketq_broker.runtime.memory_settings import leave_out_pandas


def say(fact: dict[str, int]) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")


def main() -> None:
    for line in sys.stdin:
        arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            # `_exit`: this is still the parent's interpreter, whose clean-up is not the child's to do.
            os._exit(broker.main(arguments))
        say({"forked": child})
        os.waitpid(child, 0)
        say({"ended": child})


if __name__ == "__main__":
    # Everything a broker needs is imported before the first fork.
    leave_out_pandas()
    __import__("rocketq_broker.app")
    main()
