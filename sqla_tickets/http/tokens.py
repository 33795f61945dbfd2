"""Bearer tokens: which token may draw from which sequence.

Only their digests are kept. A request's token is compared with all of them, in constant time.
"""

from __future__ import annotations

import base64
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
#: As in a shell: ``photos#old`` is a word.
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_FORMAT: Final = (
    "expected a token of 16 or more letters, digits and -._~+/, such as `openssl rand -hex 32` prints, followed by "
    "the names of its sequences, separated by spaces"
)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Tokens:
    """The tokens and what they permit. If there are none, everyone may do everything.

    Attributes:
        scopes: names of sequences, ``*`` or ``@status``, by the SHA-256 digest of the token.
    """

    scopes: Mapping[bytes, frozenset[str]] = field(default_factory=dict[bytes, frozenset[str]])

    @classmethod
    def parse(cls, text: str, origin: str) -> Tokens:
        """Parse the tokens of a file or a variable: a token and its sequences on each line, or before each ``;``.

        Args:
            text: a comment is ``#``, at the start of a line or after a space, and the rest of that line.
            origin: the name of the file or of the variable, for the message.

        Raises:
            TicketArgumentError: a line is invalid, or there is no token. The message never quotes a token.
        """
        scopes: dict[bytes, frozenset[str]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            for entry in _COMMENT.sub("", line).split(";"):
                token, *names = entry.split() or [""]
                if not token:
                    continue
                if not names or not _TOKEN.fullmatch(token) or any("," in name for name in names):
                    raise TicketArgumentError(f"{origin}, line {number}: {_FORMAT}")
                digest = _digest(token)
                scopes[digest] = scopes.get(digest, frozenset()) | set(names)
        if not scopes:
            raise TicketArgumentError(f"{origin} has no token: {_FORMAT}")
        return cls(scopes)

    def __bool__(self) -> bool:
        return bool(self.scopes)

    def scopes_of(
        self, authorization: str, *, takes_password: bool = False
    ) -> frozenset[str] | None:
        """What the token of a request permits; None if it is not valid.

        Args:
            authorization: the header, ``Bearer TOKEN``.
            takes_password: whether to accept ``Basic``, too, with the token as the password. Browsers send that
                automatically, also with the forms of other sites.
        """
        scheme, _, value = authorization.partition(" ")
        token = ""
        if scheme.lower() == "bearer":
            token = value.strip()
        elif scheme.lower() == "basic" and takes_password:
            token = _password_of(value)
        digest, found = _digest(token), None
        for known, scopes in self.scopes.items():
            if hmac.compare_digest(known, digest):
                found = scopes
        return found


def _password_of(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or neither ASCII nor UTF-8
        return ""
