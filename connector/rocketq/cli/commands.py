"""The table of all commands: where each is, and the line that `rocketq --help` and completion show of it.

A test compares each line with the help of the command itself.
"""

from __future__ import annotations

from typing import Final

from rocketq.cli.terminal.deferred_commands import DeferredCommand

COMMANDS: Final = (
    DeferredCommand("version", "rocketq.cli.terminal.version:version", "Show the version."),
    DeferredCommand(
        "up",
        "rocketq.cli.local.servers:up",
        "Start a cluster on this machine and keep it up until Ctrl-C, or `rocketq down` in another terminal.",
    ),
    DeferredCommand(
        "status",
        "rocketq.cli.local.status:status",
        "Show the servers that `rocketq up` keeps up. Exit code 3: none is up; 10: one is not ready.",
    ),
    DeferredCommand(
        "down",
        "rocketq.cli.local.status:down",
        "Stop the cluster that `rocketq up` keeps up, in good order; its messages stay. "
        "Exit code 3: none is up.",
    ),
    DeferredCommand("nameserver", "rocketq.cli.local.servers:nameserver", "Run a NameServer."),
    DeferredCommand("broker", "rocketq.cli.local.servers:broker", "Run a broker, or look after one."),
    DeferredCommand(
        "console", "rocketq.cli.local.console:console", "Show the cluster on web pages, until Ctrl-C."
    ),
    DeferredCommand("topic", "rocketq.cli.topics:topic", "Create, look at, change and delete topics."),
    DeferredCommand(
        "produce",
        "rocketq.cli.messages.produce_consume:produce",
        "Send each line of stdin as a message. The topic is made if it does not exist.",
    ),
    DeferredCommand(
        "consume", "rocketq.cli.messages.produce_consume:consume", "Write the messages of a topic to stdout."
    ),
    DeferredCommand(
        "receive",
        "rocketq.cli.messages.leases:receive",
        "Lease messages of a topic. What is not acknowledged in time comes again.",
    ),
    DeferredCommand(
        "ack",
        "rocketq.cli.messages.leases:acknowledge",
        "Acknowledge received messages by their receipt handles. Repeating it is harmless.",
    ),
    DeferredCommand(
        "query", "rocketq.cli.messages.query:query", "Look messages up by id, offset, key or time."
    ),
    DeferredCommand(
        "trace",
        "rocketq.cli.messages.traces:trace",
        "Show the way of a message: who sent it, where it is stored, and who received it with which outcome.",
    ),
    DeferredCommand("group", "rocketq.cli.groups:group", "Look at consumer groups, and change them."),
    DeferredCommand(
        "sink", "rocketq.cli.sinks:sink", "Look at exactly-once sinks, and forget what they no longer need."
    ),
    DeferredCommand(
        "dlq", "rocketq.cli.messages.dead_letters:dlq", "Look at dead letters, and send them again."
    ),
    DeferredCommand(
        "timer", "rocketq.cli.messages.timers:timer", "Look at delayed messages, and cancel them."
    ),
    DeferredCommand(
        "tx",
        "rocketq.cli.messages.transactions:tx",
        "Look at transactions that are undecided, and decide them.",
    ),
    DeferredCommand(
        "cluster",
        "rocketq.cli.brokers.cluster:cluster",
        "Show every broker each NameServer knows. "
        "Exit code 10: a NameServer is silent, or no broker is there.",
    ),
    DeferredCommand("config", "rocketq.cli.local.configuration:config", "Look at settings."),
    DeferredCommand(
        "completion",
        "rocketq.cli.terminal.completion:completion",
        "Write the script that has a shell complete commands, options, topics and groups.",
    ),
    DeferredCommand(
        "context",
        "rocketq.cli.terminal.context:context",
        "Give clusters names, and choose the one that commands ask.",
    ),
    DeferredCommand(
        "bench",
        "rocketq.cli.messages.bench:bench",
        "Measure sending and consuming on a new topic, which is deleted afterwards.",
    ),
    DeferredCommand(
        "export",
        "rocketq.cli.messages.export:export",
        "Write what a topic holds into a file: .parquet for analysis, .jsonl to bring it back.",
    ),
    DeferredCommand(
        "doctor",
        "rocketq.cli.local.doctor:doctor",
        "Look for what makes first runs fail: Python, Java, packages, ports, disk, proxies.",
    ),
    DeferredCommand(
        "demo",
        "rocketq.cli.local.doctor:demo",
        "Run 336,776 flights through two brokers and Spark, and count them (under 90 s).",
    ),
)
