"""Bearer tokens: which of them may draw from which sequence.

Only their digests are kept. A token that is sent is compared with every one of them, in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import TicketArgumentError

#: Everything, and the status page with the metrics.
EVERYTHING: Final = "*"
STATUS: Final = "@status"
#: What RFC 6750 allows, long enough not to be guessed.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
_FORMAT: Final = (
    "expected a token of 16 or more letters, digits and -._~+/, such as `openssl rand -hex 32` prints, and the"
    " names of its sequences behind it"
)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Tokens:
    """Who may do what. Empty, everybody may do everything.

    Attributes:
        scopes: names of sequences, ``*`` or ``@status``, by the SHA-256 digest of the token.
    """

    scopes: Mapping[bytes, frozenset[str]] = field(default_factory=dict[bytes, frozenset[str]])

    @classmethod
    def parse(cls, text: str, origin: str) -> Tokens:
        """The tokens of a file or a variable: in each line, or up to each ``;``, a token and its sequences.

        Args:
            text: with ``#`` before comments.
            origin: the name of the file or of the variable, for the message.

        Raises:
            TicketArgumentError: a line is invalid, or there is none. The message never quotes a token.
        """
        scopes: dict[bytes, frozenset[str]] = {}
        for number, line in enumerate(re.split(r"[\n;]", text), 1):
            token, *names = line.partition("#")[0].split() or [""]
            if not token:
                continue
            if not names or not _TOKEN.fullmatch(token):
                raise TicketArgumentError(f"{origin}, line {number}: {_FORMAT}")
            digest = _digest(token)
            scopes[digest] = scopes.get(digest, frozenset()) | set(names)
        if not scopes:
            raise TicketArgumentError(f"{origin} has no token: {_FORMAT}")
        return cls(scopes)

    def __bool__(self) -> bool:
        return bool(self.scopes)

    def scopes_of(self, authorization: str) -> frozenset[str] | None:
        """What the token of a request may do; None for no valid one.

        Args:
            authorization: the header; ``Bearer TOKEN``, or ``Basic``, as browsers send it, with the token as the
                password.
        """
        digest, found = _digest(_token_of(authorization)), None
        for known, scopes in self.scopes.items():
            if hmac.compare_digest(known, digest):
                found = scopes
        return found


def _token_of(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""
