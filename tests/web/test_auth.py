"""Verdicts on passwords: timing doesn't reveal users, the work is bounded, and a flood stops no scraper."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from random import Random

import bcrypt
import pytest

from exporter.web.auth import (
    MAX_WAITING,
    Check,
    CheckQueue,
    Passwords,
    TokenBucket,
    bcrypt_matches,
    dummy_hash,
    hashes_for,
    read_credentials,
)
from exporter.web.config_file import RateLimit

USERS = {b"alice": b"$2b$12$" + b"a" * 53, b"bob": b"$2b$10$" + b"b" * 53}


def header(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


class Comparison:
    """A replacement for bcrypt's comparison: records its calls, blocks until `may_return`, and accepts one password."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []
        self.may_return = threading.Event()
        self.may_return.set()
        self.called = threading.Event()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.calls.append((password, hashed))
        self.called.set()
        self.may_return.wait(60)
        return password == b"right"


def test_an_unknown_user_costs_as_much_as_a_known_one() -> None:
    """Both take one comparison, for unknown users with a hash of the costliest cost, and both verdicts are cached."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        headers = [header("alice", "wrong"), header("eve", "wrong")] * 2
        return [await passwords.judge(USERS, value, "peer") for value in headers]

    assert asyncio.run(ask()) == ["refused"] * 4
    assert [hashed for _, hashed in compare.calls] == [USERS[b"alice"], dummy_hash(USERS)]
    assert dummy_hash(USERS).startswith(b"$2b$12$")


def test_a_user_with_a_cheaper_hash_costs_as_much_as_an_unknown_one() -> None:
    """For any costs of the configured hashes, each wrong password costs the same: the sum of 2 to the cost."""
    users = {b"costly": USERS[b"alice"], b"middle": USERS[b"bob"], b"cheap": b"$2y$04$" + b"c" * 53}
    compare = Comparison()

    async def work(user: str) -> int:
        compare.calls.clear()
        assert await Passwords(compare=compare).judge(users, header(user, "wrong"), "peer") == "refused"
        assert all(password == b"wrong" for password, _ in compare.calls)
        return sum(2 ** int(hashed.split(b"$")[2]) for _, hashed in compare.calls)

    assert {asyncio.run(work(user)) for user in ("costly", "middle", "cheap", "nobody")} == {2**12}


def test_timing_with_real_hashes_of_different_costs_reveals_no_user() -> None:
    """A user with a cheap hash takes as much CPU time as an unknown one, within a factor of 2."""
    users = {b"cheap": bcrypt.hashpw(b"right", bcrypt.gensalt(4)), b"costly": bcrypt.hashpw(b"x", bcrypt.gensalt(10))}

    def seconds(user: bytes) -> float:
        hashes, begun = hashes_for(users, user), time.thread_time()
        assert not any(bcrypt_matches(b"wrong", hashed) for hashed in hashes)
        return time.thread_time() - begun

    cheap, unknown = (min(seconds(user) for _ in range(3)) for user in (b"cheap", b"eve"))
    assert 0.5 < cheap / unknown < 2


def test_a_right_password_of_a_cheap_hash_is_admitted_by_one_comparison() -> None:
    """A right password isn't delayed to hide the cost of its hash."""
    compare = Comparison()
    users = {**USERS, b"cheap": b"$2y$04$" + b"c" * 53}
    assert asyncio.run(Passwords(compare=compare).judge(users, header("cheap", "right"), "peer")) == "admitted"
    assert len(compare.calls) == 1


def test_an_unknown_user_is_refused_even_if_the_comparison_matches() -> None:
    """A matching comparison admits only users of the file."""
    verdict = asyncio.run(Passwords(compare=lambda *_: True).judge(USERS, header("eve", "right"), "peer"))
    assert verdict == "refused"


def test_a_changed_hash_is_compared_anew() -> None:
    """A password that matched the previous hash is compared with the new one."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        first = await passwords.judge(USERS, header("alice", "right"), "peer")
        second = await passwords.judge({b"alice": USERS[b"bob"]}, header("alice", "right"), "peer")
        return [first, second]

    assert asyncio.run(ask()) == ["admitted", "admitted"]
    assert len(compare.calls) == 2


def test_wrong_passwords_never_evict_a_right_one_from_the_cache() -> None:
    """After more wrong passwords than the cache holds, the right one is still accepted without a comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0)

    async def ask() -> None:
        assert await passwords.judge(USERS, header("alice", "right"), "peer") == "admitted"
        for number in range(150):
            assert await passwords.judge(USERS, header("alice", f"wrong {number}"), "peer") == "refused"
        before = len(compare.calls)
        assert await passwords.judge(USERS, header("alice", "right"), "peer") == "admitted"
        assert len(compare.calls) == before

    asyncio.run(ask())


def test_the_same_password_is_compared_once_for_all_requests_at_a_time() -> None:
    """Fifty connections with one wrong password take one comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        return await asyncio.gather(*(passwords.judge(USERS, header("alice", "wrong"), "peer") for _ in range(50)))

    assert set(asyncio.run(ask())) == {"refused"}
    assert len(compare.calls) == 1


def order_of(requests: list[tuple[str, str]], answered_busy: str = "") -> list[str]:
    """Return the order in which passwords of (address, password) are compared that came during another comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0, wait_seconds=0.05 if answered_busy else 60.0)

    async def ask() -> None:
        compare.may_return.clear()
        tasks = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "peer"))]
        await asyncio.to_thread(compare.called.wait)
        if answered_busy:
            assert await passwords.judge(USERS, header("alice", answered_busy), "peer") == "busy"
            passwords.wait_seconds = 60.0
        for peer, password in requests:
            tasks.append(asyncio.create_task(passwords.judge(USERS, header("alice", password), peer)))
            await asyncio.sleep(0)
        compare.may_return.set()
        await asyncio.gather(*tasks)

    asyncio.run(ask())
    return [password.decode() for password, _ in compare.calls[1:]]


def test_the_newest_password_of_an_address_is_compared_first() -> None:
    """A scraper that meets a full queue doesn't wait behind it."""
    assert order_of([("a", "1"), ("a", "2"), ("a", "3")]) == ["3", "2", "1"]


def test_addresses_take_turns() -> None:
    """A flood from one address doesn't delay other addresses, and doesn't wait indefinitely itself."""
    assert order_of([("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("b", "5")]) == ["5", "4", "3", "2", "1"]


def test_the_address_with_the_fewest_passwords_waiting_goes_first() -> None:
    """An address that sends one password comes before two hundred that send more."""
    crowd = [(f"crowd {host}", f"{host} {number}") for number in range(3) for host in range(60)]
    assert order_of([crowd[0], ("scraper", "right"), *crowd[1:]])[0] == "right"


def test_a_retried_password_goes_first() -> None:
    """A password that was answered "busy" comes before newer ones: a scraper retries it, a guesser doesn't."""
    assert order_of([("peer", "again"), ("peer", "1"), ("peer", "2")], answered_busy="again")[0] == "again"


def test_a_check_outlives_the_request_that_started_it() -> None:
    """A client that gave up or was evicted finds the verdict when it returns."""
    compare = Comparison()

    async def ask() -> None:
        passwords = Passwords(compare=compare)
        compare.may_return.clear()
        first = asyncio.create_task(passwords.judge(USERS, header("alice", "wrong"), "crowd"))
        await asyncio.to_thread(compare.called.wait)
        second = asyncio.create_task(passwords.judge(USERS, header("alice", "right"), "scraper"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        compare.may_return.set()
        assert await first == "refused"
        assert await passwords.judge(USERS, header("alice", "right"), "scraper") == "admitted"
        assert [password for password, _ in compare.calls] == [b"wrong", b"right"]

    asyncio.run(ask())


def test_a_full_queue_drops_a_password_of_the_address_with_the_most() -> None:
    """If the queue is full, the address with the most waiting checks loses one, even if others are older."""
    compare = Comparison()

    async def ask() -> str:
        passwords = Passwords(compare=compare, clock=lambda: 0.0)
        compare.may_return.clear()
        tasks = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "crowd"))]
        await asyncio.to_thread(compare.called.wait)
        scraper = asyncio.create_task(passwords.judge(USERS, header("alice", "right"), "scraper"))
        for number in range(2 * MAX_WAITING):
            tasks.append(asyncio.create_task(passwords.judge(USERS, header("alice", f"wrong {number}"), "crowd")))
            await asyncio.sleep(0)
        compare.may_return.set()
        await asyncio.gather(*tasks)
        return await scraper

    assert asyncio.run(ask()) == "admitted"


def test_a_check_dropped_from_a_full_queue_is_answered_busy() -> None:
    """A new password replaces the oldest waiting one, so the queue is bounded."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0, wait_seconds=60.0)

    async def ask() -> list[str]:
        compare.may_return.clear()
        tasks = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "peer"))]
        await asyncio.to_thread(compare.called.wait)
        for number in range(MAX_WAITING + 6):
            tasks.append(asyncio.create_task(passwords.judge(USERS, header("alice", str(number)), "peer")))
            await asyncio.sleep(0)
        compare.may_return.set()
        return list(await asyncio.gather(*tasks))

    verdicts = asyncio.run(ask())
    assert verdicts[1:7] == ["busy"] * 6
    assert set(verdicts[7:]) == {"refused"}


def test_a_comparison_that_raises_admits_no_client_and_the_next_one_runs() -> None:
    """An error inside bcrypt is no verdict, and the next password is still compared."""

    def compare(password: bytes, _: bytes) -> bool:
        if password == b"broken":
            raise RuntimeError
        return True

    async def ask() -> list[str]:
        passwords = Passwords(compare=compare)
        return [await passwords.judge(USERS, header("alice", password), "peer") for password in ("broken", "right")]

    assert asyncio.run(ask()) == ["busy", "admitted"]


@pytest.mark.parametrize("seed", range(5))
def test_every_check_is_run_or_dropped_exactly_once(seed: int) -> None:
    """For any order of arrivals, no check is lost or run twice, and the queue stays bounded."""
    random, queue, loop = Random(seed), CheckQueue(), asyncio.new_event_loop()  # noqa: S311  # only an order
    added, left = [], []
    for number in range(4 * MAX_WAITING):
        check = Check(b"%d" % number, f"peer {random.randrange(9)}", b"", (), False, loop.create_future())
        check.retried = random.random() < 0.1
        added.append(check)
        left += [given_up for given_up in [queue.add(check)] if given_up is not None]
        left += [taken for taken in [queue.take() if random.random() < 0.2 else None] if taken is not None]
        assert len(added) - len(left) <= MAX_WAITING
    while (taken := queue.take()) is not None:
        left.append(taken)
    loop.close()
    assert len(left) == len(added)
    assert {check.key for check in left} == {check.key for check in added}


@pytest.mark.parametrize(
    ("value", "credentials"),
    [
        (b"Basic YTpiOmM=", (b"a", b"b:c")),
        (b"basic YTo=", (b"a", b"")),
        (b"Basic YQ==", None),
        (b"Basic", None),
        (b"", None),
        (b"Basic \xff", None),
        (b"Bearer YTpi", None),
    ],
)
def test_credentials_are_parsed_as_in_rfc_7617(value: bytes, credentials: tuple[bytes, bytes] | None) -> None:
    """The user ends at the first colon and the rest is the password; anything else is not a credential."""
    assert read_credentials(value) == credentials


def test_printed_objects_contain_no_password() -> None:
    """The object shows neither passwords nor its key."""
    passwords = Passwords(compare=Comparison())
    asyncio.run(passwords.judge(USERS, header("alice", "hunter2"), "peer"))
    assert "hunter2" not in repr(passwords)


def test_the_bucket_lets_bursts_through_and_then_one_per_interval() -> None:
    """Two requests pass at once, then one after each interval, and never more than the burst."""
    now = 0.0
    bucket = TokenBucket(RateLimit(10.0, 2), clock=lambda: now)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now = 10.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    now = 1000.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]
