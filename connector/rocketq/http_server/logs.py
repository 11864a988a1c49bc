"""The log of a server: one line for each event, on stderr.

A line is an event's name and its facts. On a terminal a person reads it as text, and everywhere else a
program reads it as a JSON object. Names of events are a fixed vocabulary (`docs/operations.md` has all of
them), so that a search or an alarm that works today works tomorrow. What libraries log (uvicorn, asyncio)
takes the same form.
"""

from __future__ import annotations

import logging
import sys

import structlog

from rocketq.http_server.settings.server_command import Settings


def begin_log(settings: Settings) -> None:
    """Configure the log as the settings say, and tell of variables that are no settings."""
    configure_logging(settings.values["log_level"], settings.values["log_format"])
    for name in settings.unknown_variables:
        structlog.get_logger("rocketq.http_server").warning("unknown_variable", variable=name)


def configure_logging(level: str = "info", form: str = "auto") -> None:
    """Send the logs of this process to stderr; libraries tell of warnings, or of all with the level debug."""
    to_terminal = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    written: structlog.typing.Processor
    if to_terminal:
        written = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        # A traceback must be one line, like everything else.
        shared.append(structlog.processors.format_exc_info)
        written = structlog.processors.JSONRenderer()
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, written],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(least),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, written],
        )
    )
    libraries = least if least in (logging.DEBUG, logging.ERROR) else logging.WARNING
    logging.basicConfig(handlers=[handler], level=libraries, force=True)
