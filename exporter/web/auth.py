"""Who may scrape: basic authentication without a user oracle, and without a way to buy our CPU with wrong passwords.

bcrypt is slow on purpose, so a flood of wrong passwords is a flood of work. One password is checked at a time, on a
thread; after a wrong one the thread rests as long as it worked. A right password is remembered apart from wrong ones,
so that no flood pushes it out: an admitted scraper never waits again. Who is not yet known waits among the others: the
address goes first whose turn is longest ago, of those the one that asks least; within an address, a password that was
asked about before and got no answer (a scraper comes again with the same, a guesser has no reason to), then the newest.
A question outlives the connection that asked it, so that whoever had to leave is known when it comes again.
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

from exporter.web.responses import in_thread

Verdict = Literal["in", "refused", "busy"]

REMEMBERED: Final = 100
UNANSWERED: Final = 10_000
"""What a hundred newcomers a second ask between two visits of a scraper, and more."""
TURNS: Final = 1000
WAITING: Final = 256
PATIENCE_SECONDS: Final = 4.0
BCRYPT_BYTES: Final = 72
"""What bcrypt looks at; htpasswd and Go cut longer passwords there in silence, the Python library refuses them."""
KEY_BYTES: Final = 16

NOBODY: Final = b"QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""Salt and digest of a hash that is nobody's; the toolkit compares unknown users with the same one."""

Compare = Callable[[bytes, bytes], bool]
K = TypeVar("K")
V = TypeVar("V")


def bcrypt_matches(password: bytes, hashed: bytes) -> bool:
    """True if the password has this bcrypt hash. Slow on purpose: ~60 ms at cost 10, twice that for each step more."""
    import bcrypt  # noqa: PLC0415  # only where basic_auth_users are configured

    try:
        return bcrypt.checkpw(password[:BCRYPT_BYTES], hashed)
    except ValueError:
        return False


@dataclass(slots=True)
class Passwords:
    """Verdicts on `Authorization` headers. Used on the server's loop only; `compare` runs on a thread."""

    compare: Compare = bcrypt_matches
    clock: Callable[[], float] = time.monotonic
    patience_seconds: float = PATIENCE_SECONDS
    _salt: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    _right: dict[bytes, None] = field(default_factory=dict)
    _wrong: dict[bytes, None] = field(default_factory=dict)
    _unanswered: dict[bytes, None] = field(default_factory=dict)
    _asked: dict[bytes, _Question] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _turn: int = 0
    _worker: asyncio.Task[None] | None = None

    async def judge(self, users: Mapping[bytes, bytes], authorization: bytes, peer: str) -> Verdict:
        """ "in", "refused", or "busy" when too many others are asking. `users` are names and bcrypt hashes."""
        credentials = read_credentials(authorization)
        if credentials is None:
            return "refused"
        user, password = credentials
        key = self._key(user, users.get(user, b""), password)
        if key in self._right:
            return "in"
        if key in self._wrong:
            return "refused"
        question = self._asked.get(key)
        if question is None:
            answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            question = _Question(key, peer, password[:BCRYPT_BYTES], hashes_for(users, user), user in users, answer)
            self._ask(question)
        question.again = question.again or key in self._unanswered
        verdict: Verdict = "busy"
        try:
            # Not `wait_for`: cancelled at the wrong moment, it goes on (in Python 3.11).
            async with asyncio.timeout(self.patience_seconds):
                verdict = await asyncio.shield(question.answer)
        except TimeoutError:
            pass
        finally:
            if verdict == "busy":
                _remember(self._unanswered, key, None, UNANSWERED)
        return verdict

    def _key(self, *parts: bytes) -> bytes:
        """What is remembered instead of a password: of no use to anyone who reads this process's memory later."""
        digest = hashlib.blake2b(key=self._salt, digest_size=KEY_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _ask(self, question: _Question) -> None:
        self._asked[question.key] = question
        waiting = self._waiting()
        if len(waiting) > WAITING:
            crowds = Counter(other.peer for other in waiting)
            self._settle(min(waiting[:-1], key=lambda other: (-crowds[other.peer], other.again)), "busy")
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def _waiting(self) -> list[_Question]:
        return [question for question in self._asked.values() if not question.begun]

    def _settle(self, question: _Question, verdict: Verdict) -> None:
        del self._asked[question.key]
        question.answer.set_result(verdict)

    def _next(self) -> _Question | None:
        waiting = self._waiting()
        if not waiting:
            return None
        crowds = Counter(question.peer for question in waiting)
        # The newest first, since the first of equals is taken.
        question = min(
            reversed(waiting),
            key=lambda each: (self._turns.get(each.peer, 0), crowds[each.peer], not each.again),
        )
        self._turn += 1
        _remember(self._turns, question.peer, self._turn, TURNS)
        question.begun = True
        return question

    async def _work(self) -> None:
        while (question := self._next()) is not None:
            self._settle(question, await self._check(question))

    async def _check(self, question: _Question) -> Verdict:
        """The verdict; on a wrong password after a rest. Then the next is chosen before whoever was wrong is back."""
        begun = self.clock()
        try:
            matches = await in_thread(lambda: question.compared(self.compare), "web-password")
        except Exception:  # whatever went wrong, the worker goes on and nobody gets in
            await asyncio.sleep(0.1)
            return "busy"
        if matches:
            _remember(self._right, question.key, None, REMEMBERED)
            return "in"
        _remember(self._wrong, question.key, None, REMEMBERED)
        await asyncio.sleep(self.clock() - begun)
        return "refused"


@dataclass(slots=True, eq=False)
class _Question:
    """Whether a password is right: the first of `hashes` tells, if the user is `known`."""

    key: bytes
    peer: str
    password: bytes = field(repr=False)
    hashes: tuple[bytes, ...] = field(repr=False)
    known: bool
    answer: asyncio.Future[Verdict]
    again: bool = False
    begun: bool = False

    def compared(self, compare: Compare) -> bool:
        """Blocks for as long as the costliest user's hash takes, unless the password is right."""
        if compare(self.password, self.hashes[0]) and self.known:
            return True
        for hashed in self.hashes[1:]:
            compare(self.password, hashed)
        return False


def _remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def read_credentials(authorization: bytes) -> tuple[bytes, bytes] | None:
    """User and password of a Basic `Authorization` header (RFC 7617); None for anything else."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user, password) if colon else None


def hashes_for(users: Mapping[bytes, bytes], user: bytes) -> tuple[bytes, ...]:
    """What a password of this user is compared with: its own hash, or nobody's, and what is missing to equal work.

    The work doubles with each step of cost, so a hash of cost 10 takes nobody's hashes of costs 10 and 11 beside it to
    be as much as one of cost 12, the costliest: time tells neither who is a user nor whose hash is cheap.
    """
    costliest = _cost(hash_of_nobody(users))
    own = users.get(user)
    if own is None:
        return (hash_of_nobody(users),)
    return (own, *(_nobody(cost) for cost in range(_cost(own), costliest)))


def hash_of_nobody(users: Mapping[bytes, bytes]) -> bytes:
    """What an unknown user's password is compared with: as costly as the costliest user's."""
    return _nobody(max(map(_cost, users.values()), default=10))


def _cost(hashed: bytes) -> int:
    return int(hashed.split(b"$")[2])


def _nobody(cost: int) -> bytes:
    return b"$2b$%02d$" % cost + NOBODY


@dataclass(slots=True)
class TokenBucket:
    """`rate_limit`: one request per `interval` seconds, `burst` at once."""

    interval: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _tokens: float = field(init=False)
    _seen: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens, self._seen = float(self.burst), self.clock()

    def take(self) -> bool:
        """True if a request may pass now."""
        now = self.clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._seen) / self.interval)
        self._seen = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
