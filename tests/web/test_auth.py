"""Verdicts on passwords: no user oracle, bounded work, and an order in which a flood stops no scraper."""

from __future__ import annotations

import asyncio
import base64
import threading
import time

import bcrypt
import pytest

from exporter.web.auth import (
    WAITING,
    Passwords,
    TokenBucket,
    bcrypt_matches,
    hash_of_nobody,
    hashes_for,
    read_credentials,
)

USERS = {b"alice": b"$2b$12$" + b"a" * 53, b"bob": b"$2b$10$" + b"b" * 53}


def header(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


class Comparison:
    """Stands where bcrypt does: keeps what it was asked, waits while it is held, and knows one password."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked_something = threading.Event()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append((password, hashed))
        self.asked_something.set()
        self.go_on.wait(60)
        return password == b"right"


def test_an_unknown_user_costs_as_much_as_a_known_one() -> None:
    """Both lead to one comparison, the unknown one's with a hash of the costliest cost, and both verdicts are the same
    when asked again without another comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        asked = [header("alice", "wrong"), header("eve", "wrong")] * 2
        return [await passwords.judge(USERS, one, "peer") for one in asked]

    assert asyncio.run(ask()) == ["refused"] * 4
    assert [hashed for _, hashed in compare.asked] == [USERS[b"alice"], hash_of_nobody(USERS)]
    assert hash_of_nobody(USERS).startswith(b"$2b$12$")


def test_a_user_with_a_cheaper_hash_costs_as_much_as_an_unknown_one() -> None:
    """Whatever the costs of the configured hashes, each wrong password makes as much work: the sum of 2 to the cost."""
    users = {b"costly": USERS[b"alice"], b"middle": USERS[b"bob"], b"cheap": b"$2y$04$" + b"c" * 53}
    compare = Comparison()

    async def work(user: str) -> int:
        compare.asked.clear()
        assert await Passwords(compare=compare).judge(users, header(user, "wrong"), "peer") == "refused"
        assert all(password == b"wrong" for password, _ in compare.asked)
        return sum(2 ** int(hashed.split(b"$")[2]) for _, hashed in compare.asked)

    assert {asyncio.run(work(user)) for user in ("costly", "middle", "cheap", "nobody")} == {2**12}


def test_with_real_hashes_of_different_costs_time_tells_no_user() -> None:
    """The processor works as long for a user with a cheap hash as for one that does not exist, within a factor of 2."""
    users = {b"cheap": bcrypt.hashpw(b"right", bcrypt.gensalt(4)), b"costly": bcrypt.hashpw(b"x", bcrypt.gensalt(10))}

    def seconds(user: bytes) -> float:
        hashes, begun = hashes_for(users, user), time.thread_time()
        assert not any(bcrypt_matches(b"wrong", hashed) for hashed in hashes)
        return time.thread_time() - begun

    cheap, unknown = (min(seconds(user) for _ in range(3)) for user in (b"cheap", b"eve"))
    assert 0.5 < cheap / unknown < 2


def test_a_right_password_of_a_cheap_hash_gets_in_by_one_comparison() -> None:
    """Who knows the password is not kept waiting for the sake of those who don't."""
    compare = Comparison()
    users = {**USERS, b"cheap": b"$2y$04$" + b"c" * 53}
    assert asyncio.run(Passwords(compare=compare).judge(users, header("cheap", "right"), "peer")) == "in"
    assert len(compare.asked) == 1


def test_an_unknown_user_never_gets_in_even_with_the_dummys_password() -> None:
    """A comparison that says yes lets in only those who are in the file."""
    verdict = asyncio.run(Passwords(compare=lambda *_: True).judge(USERS, header("eve", "right"), "peer"))
    assert verdict == "refused"


def test_a_changed_hash_is_compared_anew() -> None:
    """What was right before the file changed is not right because it was."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        first = await passwords.judge(USERS, header("alice", "right"), "peer")
        second = await passwords.judge({b"alice": USERS[b"bob"]}, header("alice", "right"), "peer")
        return [first, second]

    assert asyncio.run(ask()) == ["in", "in"]
    assert len(compare.asked) == 2


def test_wrong_passwords_never_push_out_a_right_one() -> None:
    """After more wrong passwords than are remembered, the right one is still known without a comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0)

    async def ask() -> None:
        assert await passwords.judge(USERS, header("alice", "right"), "peer") == "in"
        for number in range(150):
            assert await passwords.judge(USERS, header("alice", f"wrong {number}"), "peer") == "refused"
        before = len(compare.asked)
        assert await passwords.judge(USERS, header("alice", "right"), "peer") == "in"
        assert len(compare.asked) == before

    asyncio.run(ask())


def test_the_same_question_is_compared_once_however_many_ask_it() -> None:
    """Fifty connections with one wrong password are one comparison."""
    compare = Comparison()
    passwords = Passwords(compare=compare)

    async def ask() -> list[str]:
        return await asyncio.gather(*(passwords.judge(USERS, header("alice", "wrong"), "peer") for _ in range(50)))

    assert set(asyncio.run(ask())) == {"refused"}
    assert len(compare.asked) == 1


def order_of(asked: list[tuple[str, str]], known_before: str = "") -> list[str]:
    """In which order questions (address, password) are compared that all came while another was being compared."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0, patience_seconds=0.05 if known_before else 60.0)

    async def ask() -> None:
        compare.go_on.clear()
        first = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "peer"))]
        await asyncio.to_thread(compare.asked_something.wait)
        if known_before:
            assert await passwords.judge(USERS, header("alice", known_before), "peer") == "busy"
            passwords.patience_seconds = 60.0
        for peer, password in asked:
            first.append(asyncio.create_task(passwords.judge(USERS, header("alice", password), peer)))
            await asyncio.sleep(0)
        compare.go_on.set()
        await asyncio.gather(*first)

    asyncio.run(ask())
    return [password.decode() for password, _ in compare.asked[1:]]


def test_the_newest_question_is_answered_first() -> None:
    """A scraper that comes to a full queue does not stand at its end."""
    assert order_of([("a", "1"), ("a", "2"), ("a", "3")]) == ["3", "2", "1"]


def test_addresses_take_turns() -> None:
    """A flood from one address does not delay another address, nor does it wait for ever itself."""
    assert order_of([("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("b", "5")]) == ["5", "4", "3", "2", "1"]


def test_an_address_that_asks_less_goes_first() -> None:
    """Of two hundred addresses that ask more than once each, none comes before the one that asks once."""
    crowd = [(f"crowd {host}", f"{host} {number}") for number in range(3) for host in range(60)]
    assert order_of([crowd[0], ("scraper", "right"), *crowd[1:]])[0] == "right"


def test_who_comes_again_goes_first() -> None:
    """A question that got no answer before is preferred to newer ones: a scraper comes again, a guesser need not."""
    assert order_of([("peer", "again"), ("peer", "1"), ("peer", "2")], known_before="again")[0] == "again"


def test_a_question_outlives_who_asked_it() -> None:
    """Who lost patience, or was closed to make room, finds the verdict when it comes again."""
    compare = Comparison()

    async def ask() -> None:
        passwords = Passwords(compare=compare)
        compare.go_on.clear()
        first = asyncio.create_task(passwords.judge(USERS, header("alice", "wrong"), "crowd"))
        await asyncio.to_thread(compare.asked_something.wait)
        second = asyncio.create_task(passwords.judge(USERS, header("alice", "right"), "scraper"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        compare.go_on.set()
        assert await first == "refused"
        assert await passwords.judge(USERS, header("alice", "right"), "scraper") == "in"
        assert [password for password, _ in compare.asked] == [b"wrong", b"right"]

    asyncio.run(ask())


def test_the_questions_of_one_crowd_are_given_up_before_anothers() -> None:
    """When the queue is full, the address with the most questions loses one, however old the others' are."""
    compare = Comparison()

    async def ask() -> str:
        passwords = Passwords(compare=compare, clock=lambda: 0.0)
        compare.go_on.clear()
        tasks = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "crowd"))]
        await asyncio.to_thread(compare.asked_something.wait)
        scraper = asyncio.create_task(passwords.judge(USERS, header("alice", "right"), "scraper"))
        for number in range(2 * WAITING):
            tasks.append(asyncio.create_task(passwords.judge(USERS, header("alice", f"wrong {number}"), "crowd")))
            await asyncio.sleep(0)
        compare.go_on.set()
        await asyncio.gather(*tasks)
        return await scraper

    assert asyncio.run(ask()) == "in"


def test_a_queue_that_is_full_says_so() -> None:
    """The oldest waiting question is given up for a new one, so that the queue is bounded."""
    compare = Comparison()
    passwords = Passwords(compare=compare, clock=lambda: 0.0)

    async def ask() -> list[str]:
        compare.go_on.clear()
        asked = [asyncio.create_task(passwords.judge(USERS, header("alice", "first"), "peer"))]
        await asyncio.to_thread(compare.asked_something.wait)
        for number in range(WAITING + 6):
            asked.append(asyncio.create_task(passwords.judge(USERS, header("alice", str(number)), "peer")))
            await asyncio.sleep(0)
        compare.go_on.set()
        return list(await asyncio.gather(*asked))

    verdicts = asyncio.run(ask())
    assert verdicts[1:7] == ["busy"] * 6
    assert set(verdicts[7:]) == {"refused"}


def test_a_comparison_that_fails_lets_nobody_in_and_goes_on() -> None:
    """An error inside bcrypt is no verdict, and the next question is still answered."""

    def compare(password: bytes, _: bytes) -> bool:
        if password == b"odd":
            raise RuntimeError
        return True

    async def ask() -> list[str]:
        passwords = Passwords(compare=compare)
        return [await passwords.judge(USERS, header("alice", one), "peer") for one in ("odd", "right")]

    assert asyncio.run(ask()) == ["busy", "in"]


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
def test_credentials_are_read_as_rfc_7617_writes_them(value: bytes, credentials: tuple[bytes, bytes] | None) -> None:
    """User up to the first colon, the rest is the password; everything else is no credentials."""
    assert read_credentials(value) == credentials


def test_nothing_that_is_printed_holds_a_password() -> None:
    """The object that remembers shows neither passwords nor its key."""
    passwords = Passwords(compare=Comparison())
    asyncio.run(passwords.judge(USERS, header("alice", "hunter2"), "peer"))
    assert "hunter2" not in repr(passwords)


def test_the_bucket_lets_bursts_through_and_then_one_per_interval() -> None:
    """Two at once, then one after each interval, and never more than the burst."""
    now = 0.0
    bucket = TokenBucket(10.0, 2, clock=lambda: now)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now = 10.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    now = 1000.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]
