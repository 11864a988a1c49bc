"""Every error of rocketq, as one tree.

    RocketqError                           code                       HTTP
    ├── ClientError                        (raised on this side: `client_errors`, `sink_errors`)
    │   ├── NameServersUnreachable         NAMESERVERS_UNREACHABLE
    │   ├── BrokerUnreachable              BROKER_UNREACHABLE
    │   ├── RouteNotFound                  ROUTE_NOT_FOUND
    │   ├── SendFailed                     SEND_FAILED
    │   ├── TraceNotFound                  TRACE_NOT_FOUND
    │   ├── InvalidConfiguration           INVALID_CONFIGURATION
    │   ├── ExtraMissing                   EXTRA_MISSING
    │   ├── WrongEventLoop                 WRONG_EVENT_LOOP
    │   ├── Closed                         CLOSED
    │   ├── RetriesExhausted               RETRIES_EXHAUSTED              `consuming_errors`
    │   ├── CoordinatorUnreachable         COORDINATOR_UNREACHABLE
    │   ├── CoordinatorUnknown             COORDINATOR_UNKNOWN
    │   ├── CoordinatorConflict            COORDINATOR_CONFLICT
    │   ├── CommitUnanswered               COMMIT_UNANSWERED
    │   └── TransactionMisused             TRANSACTION_MISUSED        `transaction_errors`
    ├── RemoteError                        (a server's answer: `remote_errors`)
    │   ├── InvalidRequest                 INVALID_REQUEST            400
    │   ├── InvalidName                    INVALID_NAME               400
    │   ├── InvalidBatch                   INVALID_BATCH              400
    │   │   └── InvalidMessage             INVALID_MESSAGE            400   `message_errors`
    │   ├── InvalidFilter                  INVALID_FILTER             400
    │   ├── NoPermission                   NO_PERMISSION              403
    │   ├── ReservedName                   RESERVED_NAME              403   `message_errors`
    │   ├── GroupDisabled                  GROUP_DISABLED             403   `group_errors`
    │   ├── ForeignOrigin                  FOREIGN_ORIGIN             403   `admission_errors`
    │   ├── NotTransactionOwner            NOT_TRANSACTION_OWNER      403   `transaction_errors`
    │   ├── NotFound                       NOT_FOUND                  404
    │   ├── TopicNotFound                  TOPIC_NOT_FOUND            404
    │   ├── QueueNotFound                  QUEUE_NOT_FOUND            404
    │   ├── SinkNotFound                   SINK_NOT_FOUND             404   `sink_errors`
    │   ├── GroupNotFound                  GROUP_NOT_FOUND            404   `group_errors`
    │   ├── MemberUnknown                  MEMBER_UNKNOWN             404   `group_errors`
    │   ├── TransactionNotFound            TRANSACTION_NOT_FOUND      404   `transaction_errors`
    │   ├── MethodNotAllowed               METHOD_NOT_ALLOWED         405
    │   ├── TooSlow                        TOO_SLOW                   408
    │   ├── Conflict                       CONFLICT                   409
    │   ├── UnreadMessages                 UNREAD_MESSAGES            409   `topic_errors`
    │   ├── BrokerNameTaken                BROKER_NAME_TAKEN          409   `registration_errors`
    │   ├── ClaimLost                      CLAIM_LOST                 409   `group_errors`
    │   ├── QueuesOwned                    QUEUES_OWNED               409   `group_errors`
    │   ├── MembersActive                  MEMBERS_ACTIVE             409   `group_errors`
    │   ├── LeaseExpired                   LEASE_EXPIRED              409   `lease_errors`
    │   ├── LeasesOutstanding              LEASES_OUTSTANDING         409   `lease_errors`
    │   ├── ReceiveFilterDiffers           RECEIVE_FILTER_DIFFERS     409   `lease_errors`
    │   ├── SendOutdated                   SEND_OUTDATED              409   `sending_errors`
    │   ├── SendNumberReused               SEND_NUMBER_REUSED         409   `sending_errors`
    │   ├── TransactionDamaged             TRANSACTION_DAMAGED        409   `transaction_errors`
    │   ├── TransactionDecidedOtherwise    TRANSACTION_DECIDED_OTHERWISE 409   `transaction_errors`
    │   ├── SinkFenced                     SINK_FENCED                409   `sink_errors`, as all below of 409
    │   ├── SinkQueryChanged               SINK_QUERY_CHANGED         409
    │   ├── NotCoordinator                 NOT_COORDINATOR            409
    │   ├── StageNotFound                  STAGE_NOT_FOUND            409
    │   ├── BatchAlreadyDecided            BATCH_ALREADY_DECIDED      409
    │   ├── BatchDiffers                   BATCH_DIFFERS              409
    │   ├── BatchNotDecided                BATCH_NOT_DECIDED          409
    │   ├── ParticipantUnknown             PARTICIPANT_UNKNOWN        409
    │   ├── SinkBusy                       SINK_BUSY                  409
    │   ├── StaleEpoch                     STALE_EPOCH                409   `replication_errors`, and so
    │   ├── EpochAhead                     EPOCH_AHEAD                409   all below of 409
    │   ├── NotMaster                      NOT_MASTER                 409
    │   ├── ReplicaUnknown                 REPLICA_UNKNOWN            409
    │   ├── ForeignReplica                 FOREIGN_REPLICA            409
    │   ├── ElectionRefused                ELECTION_REFUSED           409
    │   ├── RegisterChanged                REGISTER_CHANGED           409
    │   ├── TooLarge                       TOO_LARGE                  413
    │   ├── UnsupportedMediaType           UNSUPPORTED_MEDIA_TYPE     415   `admission_errors`
    │   ├── OffsetOutOfRange               OFFSET_OUT_OF_RANGE        416
    │   ├── MisdirectedRequest             MISDIRECTED_REQUEST        421   `admission_errors`
    │   ├── SystemBusy                     SYSTEM_BUSY                429
    │   ├── TooManyLeases                  TOO_MANY_LEASES            429   `lease_errors`
    │   ├── InternalError                  INTERNAL_ERROR             500
    │   ├── BrokerUnavailable              BROKER_UNAVAILABLE         503
    │   ├── TooManyConnections             TOO_MANY_CONNECTIONS       503
    │   ├── ServerStopping                 SERVER_STOPPING            503   `admission_errors`
    │   ├── RegisterUnavailable            REGISTER_UNAVAILABLE       503   `replication_errors`
    │   ├── AcceptorFailed                 ACCEPTOR_FAILED            503   `replication_errors`
    │   ├── NotEnoughReplicas              IN_SYNC_REPLICAS_NOT_ENOUGH 503  `replication_errors`
    │   │   └── InSyncSetUnsettled         IN_SYNC_SET_UNSETTLED      503   `replication_errors`
    │   ├── OutcomeUnknown                 OUTCOME_UNKNOWN            503   `replication_errors`
    │   │   └── StageUnconfirmed           STAGE_UNCONFIRMED          503   `replication_errors`
    │   └── StoreFull                      STORE_FULL                 507
    ├── CorruptFrame                       CORRUPT_FRAME              422   (bytes that break the format)
    └── StoreError                         (of the broker's disk: `rocketq_broker.store.errors`)

Over the wire an error is the JSON document `{"code", "message", "hint", "facts"}` with the HTTP
status of its class; `documents` rebuilds the same class on the other side. The codes are words for
RocketMQ's numeric response codes (`ResponseCode`, `SendStatus`), because HTTP carries words well.
"""

from __future__ import annotations

from rocketq.errors.admission_errors import (
    ForeignOrigin,
    MisdirectedRequest,
    ServerStopping,
    UnsupportedMediaType,
)
from rocketq.errors.base import ClientError, JsonFacts, RemoteError, RocketqError, by_code
from rocketq.errors.client_errors import (
    BrokerUnreachable,
    Closed,
    ExtraMissing,
    InvalidConfiguration,
    NameServersUnreachable,
    RouteNotFound,
    SendFailed,
    TraceNotFound,
    WrongEventLoop,
)
from rocketq.errors.consuming_errors import RetriesExhausted
from rocketq.errors.group_errors import (
    ClaimLost,
    GroupDisabled,
    GroupNotFound,
    MembersActive,
    MemberUnknown,
    QueuesOwned,
)
from rocketq.errors.lease_errors import (
    LeaseExpired,
    LeasesOutstanding,
    ReceiveFilterDiffers,
    TooManyLeases,
)
from rocketq.errors.message_errors import InvalidMessage, ReservedName
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.errors.remote_errors import (
    BrokerUnavailable,
    Conflict,
    CorruptFrame,
    InternalError,
    InvalidBatch,
    InvalidFilter,
    InvalidName,
    InvalidRequest,
    MethodNotAllowed,
    NoPermission,
    NotFound,
    OffsetOutOfRange,
    QueueNotFound,
    StoreFull,
    SystemBusy,
    TooLarge,
    TooManyConnections,
    TooSlow,
    TopicNotFound,
)
from rocketq.errors.replication_errors import (
    AcceptorFailed,
    ElectionRefused,
    EpochAhead,
    ForeignReplica,
    InSyncSetUnsettled,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    RegisterChanged,
    RegisterUnavailable,
    ReplicaUnknown,
    StaleEpoch,
)
from rocketq.errors.sending_errors import SendNumberReused, SendOutdated
from rocketq.errors.sink_errors import (
    BatchAlreadyDecided,
    BatchDiffers,
    BatchNotDecided,
    CommitUnanswered,
    CoordinatorConflict,
    CoordinatorUnknown,
    CoordinatorUnreachable,
    NotCoordinator,
    ParticipantUnknown,
    SinkBusy,
    SinkFenced,
    SinkNotFound,
    SinkQueryChanged,
    StageNotFound,
)
from rocketq.errors.topic_errors import UnreadMessages
from rocketq.errors.transaction_errors import (
    NotTransactionOwner,
    TransactionDamaged,
    TransactionDecidedOtherwise,
    TransactionMisused,
    TransactionNotFound,
)

__all__ = [
    "AcceptorFailed",
    "BatchAlreadyDecided",
    "BatchDiffers",
    "BatchNotDecided",
    "BrokerNameTaken",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "ClaimLost",
    "ClientError",
    "Closed",
    "CommitUnanswered",
    "Conflict",
    "CoordinatorConflict",
    "CoordinatorUnknown",
    "CoordinatorUnreachable",
    "CorruptFrame",
    "ElectionRefused",
    "EpochAhead",
    "ExtraMissing",
    "ForeignOrigin",
    "ForeignReplica",
    "GroupDisabled",
    "GroupNotFound",
    "InSyncSetUnsettled",
    "InternalError",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidName",
    "InvalidRequest",
    "JsonFacts",
    "LeaseExpired",
    "LeasesOutstanding",
    "MemberUnknown",
    "MembersActive",
    "MethodNotAllowed",
    "MisdirectedRequest",
    "NameServersUnreachable",
    "NoPermission",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotFound",
    "NotMaster",
    "NotTransactionOwner",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "ParticipantUnknown",
    "QueueNotFound",
    "QueuesOwned",
    "ReceiveFilterDiffers",
    "RegisterChanged",
    "RegisterUnavailable",
    "RemoteError",
    "ReplicaUnknown",
    "ReservedName",
    "RetriesExhausted",
    "RocketqError",
    "RouteNotFound",
    "SendFailed",
    "SendNumberReused",
    "SendOutdated",
    "ServerStopping",
    "SinkBusy",
    "SinkFenced",
    "SinkNotFound",
    "SinkQueryChanged",
    "StageNotFound",
    "StaleEpoch",
    "StoreFull",
    "SystemBusy",
    "TooLarge",
    "TooManyConnections",
    "TooManyLeases",
    "TooSlow",
    "TopicNotFound",
    "TraceNotFound",
    "TransactionDamaged",
    "TransactionDecidedOtherwise",
    "TransactionMisused",
    "TransactionNotFound",
    "UnreadMessages",
    "UnsupportedMediaType",
    "WrongEventLoop",
    "by_code",
]
