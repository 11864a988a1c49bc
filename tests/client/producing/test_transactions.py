"""Transactions from a program: blocks, checks, misuse, and what a broker that does not answer leaves."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rocketq import (
    Client,
    Closed,
    HalfMessage,
    InvalidMessage,
    LocalCluster,
    MessageQueue,
    ReservedName,
    TransactionDecidedOtherwise,
    TransactionMisused,
    TransactionProducer,
    TransactionState,
)
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors.transaction_errors import NotTransactionOwner
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transaction_api import TransactionApi
from tests.support.patience import PatientClient, patient_transport

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
QUICK = ("--transaction-timeout-ms", "50", "--transaction-check-interval-ms", "50")


@pytest.fixture(scope="module")
def quick() -> Iterator[LocalCluster]:
    """A broker that checks transactions soon and often."""
    with LocalCluster(brokers=1, broker_arguments=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


@pytest.fixture
def tp(mq: Client, topic: str) -> Iterator[TransactionProducer]:
    """A producer whose transactions are never checked while a test runs: the first check comes after 6 s."""
    mq.create_topic(topic, queues=2)
    with mq.transactions(f"group-{topic}", check=lambda message: UNKNOWN) as made:
        yield made


def bodies(mq: Client, topic: str) -> list[bytes]:
    """All messages of a topic that can be seen now, sorted."""
    found: list[bytes] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        total = sum(each.total for each in mq.describe_topic(topic).values())
        while len(found) < total:
            found += [message.body for message in consumer.poll(timeout_ms=60_000)]
    return sorted(found)


def total(mq: Client, topic: str) -> int:
    return sum(each.total for each in mq.describe_topic(topic).values())


# --- the block --------------------------------------------------------------------------


def test_a_message_is_seen_when_its_block_has_ended(mq: Client, tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "order", key="o-1", tag="paid", properties={"region": "eu"}) as t:
        assert t.id
        assert t.broker in ("broker-a", "broker-b")
        assert total(mq, topic) == 0
    assert t.state is COMMIT
    with mq.pull_consumer(topic, start="earliest") as consumer:
        (message,) = consumer.poll(timeout_ms=60_000)
    assert (message.body, message.key, message.tag, message.properties) == (
        b"order",
        b"o-1",
        "paid",
        {"region": "eu"},
    )


def test_an_exception_in_the_block_rolls_back_and_goes_on(
    mq: Client, tp: TransactionProducer, topic: str
) -> None:
    with pytest.raises(ZeroDivisionError), tp.transaction(topic, "order") as t:
        raise ZeroDivisionError
    assert t.state is ROLLBACK
    assert total(mq, topic) == 0


def test_several_messages_share_one_outcome(mq: Client, tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "a") as t:
        for number in range(5):
            t.send(topic, f"b{number}")
    assert bodies(mq, topic) == [b"a", b"b0", b"b1", b"b2", b"b3", b"b4"]
    with pytest.raises(ZeroDivisionError), tp.transaction(topic, "c") as t:
        t.send(topic, str(1 // 0))
    assert total(mq, topic) == 6


def test_a_block_can_be_decided_before_its_end(mq: Client, tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "kept") as t:
        t.commit()
        assert bodies(mq, topic) == [b"kept"]
    with tp.transaction(topic, "dropped") as t:
        t.rollback()
    assert bodies(mq, topic) == [b"kept"]


# --- misuse -----------------------------------------------------------------------------


@pytest.mark.parametrize("check", [None, "no function"])
def test_transactions_without_a_check_function_are_refused(mq: Client, check: object) -> None:
    with pytest.raises(TransactionMisused, match=r"check"):
        mq.transactions("orders-tx", check=check)  # type: ignore[arg-type]


def test_a_coroutine_check_needs_a_running_loop(mq: Client) -> None:
    async def check(message: HalfMessage) -> TransactionState:
        return COMMIT

    with pytest.raises(TransactionMisused, match="no event loop is running"):
        mq.transactions("orders-tx", check=check)


def test_a_reserved_group_is_refused(mq: Client) -> None:
    with pytest.raises(ReservedName):
        mq.transactions("CID_RMQ_SYS_TRANS", check=lambda message: COMMIT)


def test_a_transaction_in_a_transaction_is_refused(mq: Client, tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "outer") as outer:
        with (
            pytest.raises(TransactionMisused, match=f"transaction {outer.id} has not ended"),
            tp.transaction(topic, "inner"),
        ):
            raise AssertionError("the inner block was entered")
        outer.send(topic, "more")
    assert bodies(mq, topic) == [b"more", b"outer"]


def test_two_threads_may_have_a_transaction_each(mq: Client, tp: TransactionProducer, topic: str) -> None:
    def other() -> None:
        with tp.transaction(topic, "other"):
            pass

    with tp.transaction(topic, "one"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert bodies(mq, topic) == [b"other"]
    assert bodies(mq, topic) == [b"one", b"other"]


def test_a_transaction_that_has_ended_takes_nothing_more(tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "a") as t:
        pass
    for misuse in (lambda: t.send(topic, "b"), t.commit, t.rollback, t.leave_to_check):
        with pytest.raises(TransactionMisused, match="it has ended"):
            misuse()
    with pytest.raises(TransactionMisused, match="entered before"), t:
        raise AssertionError("the block was entered twice")


def test_a_transaction_whose_block_was_not_entered_takes_nothing(tp: TransactionProducer, topic: str) -> None:
    with pytest.raises(TransactionMisused, match="not entered"):
        tp.transaction(topic, "a").send(topic, "b")


@pytest.mark.parametrize(
    "arguments", [{"delay": "10s"}, {"deliver_at": 5}, {"properties": {"DELAY": "3"}}], ids=str
)
def test_a_delay_in_a_transaction_is_refused(
    mq: Client, tp: TransactionProducer, topic: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(TransactionMisused, match="delivered at once"):
        tp.transaction(topic, "late", **arguments)  # type: ignore[arg-type]
    with tp.transaction(topic, "now") as t, pytest.raises(TransactionMisused, match="delivered at once"):
        t.send(topic, "late", **arguments)  # type: ignore[arg-type]
    assert bodies(mq, topic) == [b"now"]


def test_a_message_for_another_broker_is_refused(tp: TransactionProducer, topic: str) -> None:
    with tp.transaction(topic, "a", queue=MessageQueue(topic, "broker-a", 0)) as t:
        assert t.broker == "broker-a"
        with pytest.raises(TransactionMisused, match="lies on broker broker-a"):
            t.send(topic, "b", queue=MessageQueue(topic, "broker-b", 0))
        t.send(topic, "c", queue=1)


def test_bad_messages_are_refused_before_anything_is_sent(tp: TransactionProducer, topic: str) -> None:
    with pytest.raises(InvalidMessage):
        tp.transaction(topic, "a", tag="two words")
    with pytest.raises(ReservedName):
        tp.transaction("%RETRY%g", "a")


def test_a_closed_producer_begins_nothing(mq: Client, topic: str) -> None:
    tp = mq.transactions(f"group-{topic}", check=lambda message: UNKNOWN)
    tp.close()
    tp.close()
    with pytest.raises(Closed):
        tp.transaction(topic, "a")


def test_a_commit_for_someone_else_is_refused(
    mq: Client, tp: TransactionProducer, topic: str, cluster: LocalCluster
) -> None:
    with tp.transaction(topic, "a") as t, patient_transport() as transport:
        addresses = {each.identity.broker: each.identity.address for each in mq.cluster().brokers}
        with pytest.raises(NotTransactionOwner) as refused:
            TransactionApi(transport, t.broker, addresses[t.broker]).decide("thief", t.id, COMMIT)
        assert refused.value.facts["owner"] == tp.group
        assert "operator" in refused.value.hint


def test_a_block_learns_that_an_operator_rolled_it_back(
    mq: Client, tp: TransactionProducer, topic: str, cluster: LocalCluster
) -> None:
    with (
        ClusterAdmin(cluster.nameservers) as admin,
        pytest.raises(TransactionDecidedOtherwise, match="ROLLBACK"),
        tp.transaction(topic, "a") as t,
    ):
        admin.transactions.decide(t.id, ROLLBACK)
    assert total(mq, topic) == 0


# --- checks -----------------------------------------------------------------------------


class Checked:
    """A check function that keeps what it was asked and answers as it is told."""

    def __init__(self, *states: TransactionState | Exception | str) -> None:
        self._states = list(states)
        self.asked: queue.Queue[HalfMessage] = queue.Queue()

    def __call__(self, message: HalfMessage) -> TransactionState:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        self.asked.put(message)
        if isinstance(state, Exception):
            raise state
        return state  # type: ignore[return-value]


def undecided(mq: Client, group: str, topic: str, check: Checked, body: str = "order") -> HalfMessage:
    """Leave a transaction to the check; return what the check function is asked first."""
    mq.create_topic(topic, queues=1)
    with mq.transactions(group, check=check) as tp:
        with tp.transaction(topic, body, key="o-1") as t:
            t.leave_to_check()
        message = check.asked.get(timeout=60)
        assert message.transaction_id == t.id
        wait_until_decided(mq, t.id)
    return message


def wait_until_decided(mq: Client, transaction: str) -> None:
    """Return once no broker has the transaction; each look is a held call for checks of nobody."""
    with patient_transport() as transport:
        while True:
            found = False
            for live in mq.cluster().brokers:
                api = TransactionApi(transport, live.identity.broker, live.identity.address)
                found |= any(each.transaction == transaction for each in api.transactions().transactions)
                if found:
                    api.take_checks("nobody", wait_ms=20)
            if not found:
                return


def test_a_check_commits_what_its_producer_left_open(quick: LocalCluster, topic: str) -> None:
    with PatientClient(quick.nameservers) as mq:
        message = undecided(mq, f"g-{topic}", topic, Checked(COMMIT))
        assert (message.body, message.key, message.queue.topic, message.check) == (b"order", b"o-1", topic, 1)
        assert bodies(mq, topic) == [b"order"]


def test_a_check_that_says_rollback_drops_the_message(quick: LocalCluster, topic: str) -> None:
    with PatientClient(quick.nameservers) as mq:
        undecided(mq, f"g-{topic}", topic, Checked(ROLLBACK))
        assert total(mq, topic) == 0


@pytest.mark.parametrize("first", [UNKNOWN, ValueError("the database is away"), "COMMIT?"], ids=str)
def test_a_check_without_an_answer_is_made_again(
    quick: LocalCluster, topic: str, first: TransactionState | Exception | str
) -> None:
    check = Checked(first, COMMIT)
    with PatientClient(quick.nameservers) as mq:
        undecided(mq, f"g-{topic}", topic, check)
        assert check.asked.get(timeout=60).check == 2
        assert bodies(mq, topic) == [b"order"]


def test_another_producer_of_the_group_is_asked(quick: LocalCluster, topic: str) -> None:
    """The one that began the transaction is gone when the check falls due."""
    with PatientClient(quick.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        first = mq.transactions(f"g-{topic}", check=Checked(UNKNOWN))
        with first, first.transaction(topic, "order") as t:
            t.leave_to_check()
        check = Checked(COMMIT)
        with mq.transactions(f"g-{topic}", check=check):
            assert check.asked.get(timeout=60).transaction_id == t.id
            wait_until_decided(mq, t.id)
        assert bodies(mq, topic) == [b"order"]


def test_a_commit_without_an_answer_is_left_to_the_check(topic: str) -> None:
    check = Checked(COMMIT)
    with LocalCluster(brokers=1, broker_arguments=QUICK) as own, PatientClient(own.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.transactions("g", check=check) as tp:
            with tp.transaction(topic, "order") as t:
                own.kill("broker-a")
                # From here on nobody answers: the block need not try for long.
                tp.config = replace(tp.config, timeout_ms=500)
            assert t.state is UNKNOWN
            own.restart("broker-a")
            assert check.asked.get(timeout=60).transaction_id == t.id
            wait_until_decided(mq, t.id)
        assert bodies(mq, topic) == [b"order"]


def test_a_broker_that_is_away_leaves_the_transaction_to_another(topic: str) -> None:
    with LocalCluster(brokers=2) as own, PatientClient(own.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.transactions("g", check=Checked(UNKNOWN)) as tp:
            own.kill("broker-a")
            for number in range(4):
                with tp.transaction(topic, f"{number}") as t:
                    assert t.broker == "broker-b"
        with patient_transport() as transport:
            broker = BrokerApi(transport, "broker-b", own.brokers["broker-b"])
            assert broker.topic(topic).total == 4
