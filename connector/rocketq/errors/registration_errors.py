"""What goes wrong when a broker registers."""

from __future__ import annotations

from rocketq.errors.base import RemoteError


class BrokerNameTaken(RemoteError):
    """Another live process holds this cluster, broker name and broker id."""

    code = "BROKER_NAME_TAKEN"
    status = 409

    def __init__(
        self, cluster: str, broker: str, broker_id: int, address: str, age_ms: int, lease_ms: int
    ) -> None:
        """`address` is the holder's; it was last heard of `age_ms` ago, and its lease has `lease_ms`."""
        super().__init__(
            f"Broker name {broker!r} (cluster {cluster!r}, id {broker_id}) is held by another live process "
            f"at {address}, which was heard of {age_ms} ms ago.",
            hint="Give this broker a name of its own (--name), or stop the other process. With "
            f"--wait-for-name it waits until the other one leaves or its lease of {lease_ms} ms ends.",
            facts={"cluster": cluster, "broker": broker, "broker_id": broker_id}
            | {"address": address, "age_ms": age_ms, "lease_ms": lease_ms},
        )
