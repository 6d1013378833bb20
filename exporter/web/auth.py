"""Basic authentication that doesn't reveal which users exist and limits the CPU time that wrong passwords cost.

bcrypt is slow on purpose, so a flood of wrong passwords is a flood of work. Therefore:

- one password is checked at a time, on a thread; after a wrong one, the worker pauses as long as the check took;
- accepted and rejected passwords have separate caches: no flood evicts an admitted scraper, which never waits again;
- other checks wait in `CheckQueue`, which is bounded and fair between addresses;
- a check outlives the connection that requested it, so its verdict is ready when the client retries.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from exporter.daemon import in_thread
from exporter.web.config_file import RateLimit

Verdict = Literal["admitted", "refused", "busy"]

CACHED_VERDICTS: Final = 100
"""Size of each cache: one for accepted passwords, one for rejected ones."""
MAX_WAITING: Final = 256
REMEMBERED_RETRIES: Final = 10_000
"""More than the number of busy responses between two scrapes, at a hundred new passwords a second."""
REMEMBERED_PEERS: Final = 1000
WAIT_SECONDS: Final = 4.0
"""How long a request waits for its verdict. After that, the verdict is "busy"."""
FAILED_CHECK_PAUSE_SECONDS: Final = 0.1
BCRYPT_BYTES: Final = 72
"""The part of a password that bcrypt uses. htpasswd and Go truncate longer ones; the Python library rejects them."""
KEY_BYTES: Final = 16

DUMMY_DIGEST: Final = b"QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""Salt and digest that belong to no user; the toolkit compares passwords of unknown users with the same one."""

Compare = Callable[[bytes, bytes], bool]
"""A function of a password and a bcrypt hash that returns whether they match; blocks."""
K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """A dictionary of the `most` entries that were put last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Set the entry and make it the newest. If there are more than `most`, drop the oldest."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]


@dataclass(slots=True, eq=False)
class Check:
    """A password to compare with `hashes`. It is right if the first hash matches and the user is `known`."""

    key: bytes
    peer: str
    password: bytes = field(repr=False)
    hashes: tuple[bytes, ...] = field(repr=False)
    known: bool
    verdict: asyncio.Future[Verdict]
    retried: bool = False
    """Whether the client sent this password before and the verdict was "busy"."""

    def run(self, compare: Compare) -> bool:
        """Return whether the password is right. If it isn't, block as long as the costliest user's hash takes."""
        if compare(self.password, self.hashes[0]) and self.known:
            return True
        for hashed in self.hashes[1:]:
            compare(self.password, hashed)
        return False


class CheckQueue:
    """The waiting password checks, in the order in which they run, with a limit on their number.

    The address that was served longest ago comes first; among equals, the one with the fewest waiting checks. Within an
    address, a retried check comes first (a scraper retries the same password, a guesser doesn't), then the newest one,
    whose client is still waiting.
    """

    def __init__(self) -> None:
        self._waiting: list[Check] = []  # oldest first
        self._served: Recent[str, int] = Recent(REMEMBERED_PEERS)  # peer to the number of its last check
        self._checks = 0

    def add(self, check: Check) -> Check | None:
        """Append a check. Return the check dropped for it: the oldest of the address with the most, None for none."""
        self._waiting.append(check)
        if len(self._waiting) <= MAX_WAITING:
            return None
        counts = self._count()
        given_up = min(self._waiting[:-1], key=lambda other: (-counts[other.peer], other.retried))
        self._waiting.remove(given_up)
        return given_up

    def take(self) -> Check | None:
        """Remove and return the next check to run; None if none is waiting."""
        if not self._waiting:
            return None
        counts = self._count()
        check = min(
            reversed(self._waiting),  # newest first, since `min` returns the first of equals
            key=lambda other: (self._served.get(other.peer, 0), counts[other.peer], not other.retried),
        )
        self._waiting.remove(check)
        self._checks += 1
        self._served.put(check.peer, self._checks)
        return check

    def _count(self) -> Counter[str]:
        return Counter(check.peer for check in self._waiting)


def bcrypt_matches(password: bytes, hashed: bytes) -> bool:
    """Return whether the password has this bcrypt hash. Takes about 60 ms at cost 10, twice that for each step."""
    import bcrypt  # noqa: PLC0415  # only needed with basic_auth_users

    try:
        return bcrypt.checkpw(password[:BCRYPT_BYTES], hashed)
    except ValueError:
        return False


@dataclass(slots=True)
class Passwords:
    """The verdicts on `Authorization` headers. Used only on the server's loop; `compare` runs on a thread."""

    compare: Compare = bcrypt_matches
    clock: Callable[[], float] = time.monotonic
    wait_seconds: float = WAIT_SECONDS
    _salt: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    _right: Recent[bytes, None] = field(default_factory=lambda: Recent(CACHED_VERDICTS))
    _wrong: Recent[bytes, None] = field(default_factory=lambda: Recent(CACHED_VERDICTS))
    _answered_busy: Recent[bytes, None] = field(default_factory=lambda: Recent(REMEMBERED_RETRIES))
    _pending: dict[bytes, Check] = field(default_factory=dict)  # waiting or being made
    _queue: CheckQueue = field(default_factory=CheckQueue)
    _worker: asyncio.Task[None] | None = None

    async def judge(self, users: Mapping[bytes, bytes], authorization: bytes, peer: str) -> Verdict:
        """Return the verdict on a header: "busy" if none is ready in time. `users` maps names to bcrypt hashes."""
        if (credentials := read_credentials(authorization)) is None:
            return "refused"
        user, password = credentials
        key = self._key(user, users.get(user, b""), password)
        if key in self._right:
            return "admitted"
        if key in self._wrong:
            return "refused"
        check = self._pending.get(key)
        if check is None:
            future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            check = Check(key, peer, password[:BCRYPT_BYTES], hashes_for(users, user), user in users, future)
            self._enqueue(check)
        check.retried = check.retried or key in self._answered_busy
        return await self._verdict_of(check)

    async def _verdict_of(self, check: Check) -> Verdict:
        verdict: Verdict = "busy"
        try:
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation.
            async with asyncio.timeout(self.wait_seconds):
                verdict = await asyncio.shield(check.verdict)
        except TimeoutError:
            pass
        finally:  # also if the client's connection is closed during the wait
            if verdict == "busy":
                self._answered_busy.put(check.key, None)
        return verdict

    def _key(self, *parts: bytes) -> bytes:
        """Return a keyed digest, stored instead of a password: a later memory dump doesn't reveal passwords."""
        digest = hashlib.blake2b(key=self._salt, digest_size=KEY_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _enqueue(self, check: Check) -> None:
        self._pending[check.key] = check
        if (given_up := self._queue.add(check)) is not None:
            self._settle(given_up, "busy")
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def _settle(self, check: Check, verdict: Verdict) -> None:
        del self._pending[check.key]
        check.verdict.set_result(verdict)

    async def _work(self) -> None:
        while (check := self._queue.take()) is not None:
            self._settle(check, await self._make(check))

    async def _make(self, check: Check) -> Verdict:
        """Run the check and return its verdict. After a wrong password, pause first: other clients come next."""
        begun = self.clock()
        try:
            matches = await in_thread(lambda: check.run(self.compare), "web-password")
        except Exception:  # the worker must continue, and an error must not admit the client
            await asyncio.sleep(FAILED_CHECK_PAUSE_SECONDS)
            return "busy"
        if matches:
            self._right.put(check.key, None)
            return "admitted"
        self._wrong.put(check.key, None)
        await asyncio.sleep(self.clock() - begun)
        return "refused"


def read_credentials(authorization: bytes) -> tuple[bytes, bytes] | None:
    """Return user and password of a Basic `Authorization` header (RFC 7617); None for any other header."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user, password) if colon else None


def hashes_for(users: Mapping[bytes, bytes], user: bytes) -> tuple[bytes, ...]:
    """Return the hashes to compare with: the user's hash or a dummy, then dummies so that every user costs the same.

    The work doubles with each step of cost. A hash of cost 10 plus dummies of costs 10 and 11 takes as long as one of
    cost 12, the costliest. So timing reveals neither which users exist nor which hashes are cheap.
    """
    if (own := users.get(user)) is None:
        return (dummy_hash(users),)
    return (own, *(_dummy(cost) for cost in range(_cost(own), _cost(dummy_hash(users)))))


def dummy_hash(users: Mapping[bytes, bytes]) -> bytes:
    """Return the hash for unknown users: as costly as the costliest user's, cost 10 without users."""
    return _dummy(max(map(_cost, users.values()), default=10))


def _cost(hashed: bytes) -> int:
    return int(hashed.split(b"$")[2])


def _dummy(cost: int) -> bytes:
    return b"$2b$%02d$" % cost + DUMMY_DIGEST


class TokenBucket:
    """The `rate_limit` of a web-config file: one request for each interval, `burst` at once. Starts full."""

    def __init__(self, rate: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._tokens, self._updated = float(rate.burst), clock()

    def take(self) -> bool:
        """Take one token. Return False if there is none: the request exceeds the limit."""
        now = self._clock()
        self._tokens = min(float(self.rate.burst), self._tokens + (now - self._updated) / self.rate.interval)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
