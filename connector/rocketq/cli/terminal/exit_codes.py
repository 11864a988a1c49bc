"""The exit code that tells an error's class.

Only a command that has failed loads this, because it knows every error there is.
"""

from __future__ import annotations

from typing import Final

from rocketq import errors
from rocketq.cli.terminal.contexts import ContextNotFound
from rocketq.errors import (
    group_errors,
    lease_errors,
    message_errors,
    registration_errors,
    replication_errors,
    sink_errors,
    topic_errors,
    transaction_errors,
)
from rocketq.local_cluster.server_process import ServerNotStarted

#: The first class an error is an instance of decides; what is not listed is 1.
EXIT_CODES: Final[tuple[tuple[type[errors.RocketqError], int], ...]] = (
    (errors.NotFound, 3),
    (errors.TopicNotFound, 3),
    (errors.QueueNotFound, 3),
    (errors.RouteNotFound, 3),
    (errors.TraceNotFound, 3),
    (ContextNotFound, 3),
    (sink_errors.SinkNotFound, 3),
    (group_errors.GroupNotFound, 3),
    (transaction_errors.TransactionNotFound, 3),
    (replication_errors.ElectionRefused, 5),
    (replication_errors.NotMaster, 5),
    (errors.Conflict, 5),
    (transaction_errors.TransactionDamaged, 5),
    (transaction_errors.TransactionDecidedOtherwise, 5),
    (registration_errors.BrokerNameTaken, 5),
    (sink_errors.SinkBusy, 5),
    (group_errors.MembersActive, 5),
    (group_errors.QueuesOwned, 5),
    (group_errors.ClaimLost, 5),
    (lease_errors.LeaseExpired, 5),
    (lease_errors.LeasesOutstanding, 5),
    (lease_errors.ReceiveFilterDiffers, 5),
    (topic_errors.UnreadMessages, 5),
    (errors.InvalidConfiguration, 2),
    (errors.ExtraMissing, 2),
    (errors.InvalidName, 2),
    (message_errors.ReservedName, 2),
    (message_errors.InvalidMessage, 2),
    (errors.NameServersUnreachable, 4),
    (errors.BrokerUnreachable, 4),
    (errors.BrokerUnavailable, 4),
    (errors.SendFailed, 4),
    (errors.TooSlow, 4),
    (ServerNotStarted, 4),
)


def exit_code(error: errors.RocketqError) -> int:
    """Return the exit code that tells this error's class."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
