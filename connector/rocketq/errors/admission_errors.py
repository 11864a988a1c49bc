"""The errors of calls that a server does not admit, or cannot finish."""

from __future__ import annotations

from rocketq.errors.base import RemoteError


class ForeignOrigin(RemoteError):
    """A page of another origin makes the call, through somebody's browser (Fetch standard, `Origin`)."""

    code = "FOREIGN_ORIGIN"
    status = 403

    def __init__(self, origin: str, host: str) -> None:
        super().__init__(
            f"A web page of {origin} may not call this server (Host: {host or 'none'}).",
            hint="A browser may use the server's own pages (/docs). Have the web server of your page pass the"
            " call on, with the Host header as it came: docs/http.md.",
            facts={"origin": origin, "host": host},
        )


class UnsupportedMediaType(RemoteError):
    """The body is of a kind that the call does not take (RFC 9110, 15.5.16)."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415

    def __init__(self, header: str, given: str, wanted: str) -> None:
        super().__init__(
            f"{header} {given!r} is not accepted." if given else f"{header} is missing.",
            hint=f"This call takes {wanted}."
            + (" Compress the buffers of an Arrow stream instead." if header == "Content-Encoding" else ""),
            facts={"header": header, "given": given, "wanted": wanted},
        )


class MisdirectedRequest(RemoteError):
    """The `Host` of the request is none of this server's names (RFC 9110, 15.5.20)."""

    code = "MISDIRECTED_REQUEST"
    status = 421

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server does not answer to the host {host!r}.",
            hint="Call it by its own address, or start it with --allowed-hosts and that name.",
            facts={"host": host},
        )


class ServerStopping(RemoteError):
    """The server was stopped before the call was done; whether it was carried out is unknown."""

    code = "SERVER_STOPPING"
    status = 503
    retryable = True

    def __init__(self, path: str) -> None:
        super().__init__(
            f"The server stopped before it had answered {path[:200]}.",
            hint="Whether the call was carried out is unknown; ask again when the server is back.",
            facts={"path": path[:200]},
        )
