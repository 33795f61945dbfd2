"""SQL expressions as Python functions: as much of SQL as the package's statements have, for all models.

An expression is parsed once, bound to the columns of a table, and compiled to a Python function of four arguments:
the values of the row, those of the row that is to be inserted, the parameters, and the session. Columns are NOT NULL,
so that the third truth value is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

__all__ = [
    "Expression",
    "Function",
    "Parameters",
    "Parser",
    "SessionState",
    "SyntaxNotModelled",
    "UnknownColumn",
    "Value",
    "Values",
]

Value = int | str | float | None
Values = tuple[Value, ...]
Parameters = Mapping[str, Value] | Sequence[Value]


class SyntaxNotModelled(BaseException):
    """A statement that no model knows: teach it, or send another one.

    No `Exception`, since the package does without much that a server does not know.
    """


class UnknownColumn(Exception):
    """An expression names a column that the table does not have."""


class SessionState(Protocol):
    """What functions of SQL can see, and change, of a session."""

    last_insert_id: int

    def microseconds(self) -> int:
        """The server's clock, in microseconds since 1970."""
        ...

    def set_last_insert_id(self, value: Value) -> Value:
        """The function ``LAST_INSERT_ID(value)``."""
        ...


#: Of the values of the row, those of a row to be inserted, the parameters, and the session.
Function = Callable[[Values, Values, Parameters, SessionState], Value]

#: The server's clock in microseconds, as the package asks each kind of server for it.
_CLOCKS: Final = (
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
)
_TOKEN: Final = re.compile(
    r"""\s+
    | (?P<parameter>%\((?P<name>\w+)\)s|%s)
    | ::\s*[A-Z]+(?:\ PRECISION)?(?:\(\d+\))?
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<text>'(?:[^'\\]|''|\\.)*')
    | (?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_][A-Za-z_0-9$]*)
    | (?P<operator><=|>=|<>|!=|%%|[-=<>+*/%&(),.;])
    """,
    re.VERBOSE,
)
# A comparison of a column with what does not depend on the row.
_EQUALS: Final = re.compile(r"\(\x00(\w+)\x00 == ([^\x00\x01]*)\)")
_COMPARISONS: Final = {
    "=": "==",
    "<>": "!=",
    "!=": "!=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
}


class _Token(NamedTuple):
    """``kind`` is the name of the group in the pattern; ``text`` is what it says, words in upper case."""

    kind: str
    text: str
    said: str


class Expression:
    """A parsed expression.

    Args:
        source: Python. The name of a column stands between two characters 0, one of the row to be inserted between two 1.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def bound(self, columns: Mapping[str, int]) -> Function:
        """The expression as a function, for a table.

        Raises:
            UnknownColumn: the table does not have one.
        """

        def replacement(found: re.Match[str]) -> str:
            row, name = ("o", found[1]) if found[1] is not None else ("n", found[2])
            if name.lower() not in columns:
                raise UnknownColumn(name)
            return f"{row}[{columns[name.lower()]}]"

        source = re.sub(r"\x00([^\x00]+)\x00|\x01([^\x01]+)\x01", replacement, self.source)
        function: Function = eval(f"lambda o, n, p, s: {source}", {"mod": _mod})
        return function


def _mod(number: int, by: int) -> int:
    """The remainder with the sign of the dividend, as SQL has it."""
    rest = abs(number) % abs(by)
    return -rest if number < 0 else rest


class Parser:
    """Reads the tokens of one statement, one after the other.

    Args:
        text: of the statement.
        new_row: the name by which an upsert calls the row that it could not insert.
    """

    def __init__(self, text: str, new_row: str = "excluded") -> None:
        self.text, self.new_row = text, new_row
        for clock in _CLOCKS:
            text = text.replace(clock, "__clock__")
        self._tokens = _tokens(text)
        self._at = self._parameters = 0

    # -- tokens

    @property
    def token(self) -> _Token:
        """The next token."""
        return self._tokens[self._at]

    def take(self) -> _Token:
        """The next token, which is left behind."""
        token = self._tokens[self._at]
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Whether these words, or operators, come next; then they are left behind."""
        if any(
            self._at + n >= len(self._tokens)
            or self._tokens[self._at + n].text != word
            or self._tokens[self._at + n].kind in ("text", "quoted")
            for n, word in enumerate(words)
        ):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Leave these words behind, which have to come next."""
        if not self.accept(*words):
            raise self.not_modelled()

    def name(self) -> str:
        """A name, which comes next."""
        token = self.take()
        if token.kind == "quoted":
            return token.said[1:-1].replace(token.said[0] * 2, token.said[0])
        if token.kind != "word":
            raise self.not_modelled()
        return token.said

    def end(self) -> None:
        """Nothing more may come."""
        self.accept(";")
        if self.token.kind != "end":
            raise self.not_modelled()

    def not_modelled(self) -> SyntaxNotModelled:
        """The error for a text that stands here."""
        return SyntaxNotModelled(f"no model knows this, at {self.token.said!r}: {self.text}")

    # -- expressions

    def expression(self) -> Expression:
        """An expression, which comes next."""
        return Expression(self._disjunction())

    def condition(self) -> tuple[Expression, list[tuple[str, Expression]]]:
        """A condition, which comes next, and the columns that it says the values of, without an "or"."""
        parts = [self._negation()]
        while self.accept("AND"):
            parts.append(self._negation())
        joined = " and ".join(parts)
        if self.token.text == "OR":
            while self.accept("OR"):
                joined = f"({joined}) or {self._conjunction()}"
            return Expression(joined), []
        found = [_EQUALS.fullmatch(part) for part in parts]
        return Expression(joined), [(each[1], Expression(each[2])) for each in found if each]

    def _disjunction(self) -> str:
        parts = [self._conjunction()]
        while self.accept("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"

    def _conjunction(self) -> str:
        parts = [self._negation()]
        while self.accept("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else f"({' and '.join(parts)})"

    def _negation(self) -> str:
        return f"(not {self._negation()})" if self.accept("NOT") else self._comparison()

    def _comparison(self) -> str:
        left = self._sum()
        token = self.token
        if token.kind == "operator" and token.text in _COMPARISONS:
            self.take()
            return f"({left} {_COMPARISONS[token.text]} {self._sum()})"
        if self.accept("IS", "NOT", "NULL"):
            return f"({left} is not None)"
        if self.accept("IS", "NULL"):
            return f"({left} is None)"
        if self.accept("IN"):
            self.expect("(")
            return f"({left} in ({', '.join(self._list())},))"
        return left

    def _sum(self) -> str:
        left = self._product()
        while self.token.kind == "operator" and self.token.text in ("+", "-"):
            left = f"({left} {self.take().text} {self._product()})"
        return left

    def _product(self) -> str:
        left = self._atom()
        while self.token.kind == "operator" and self.token.text in ("*", "%", "%%", "&"):
            operator = self.take().text
            right = self._atom()
            left = f"mod({left}, {right})" if "%" in operator else f"({left} {operator} {right})"
        return left

    def _list(self) -> list[str]:
        parts = [self._disjunction()]
        while self.accept(","):
            parts.append(self._disjunction())
        self.expect(")")
        return parts

    def _atom(self) -> str:
        token = self.take()
        if token.kind == "parameter":
            self._parameters += 1
            return f"p[{token.text!r}]" if token.text else f"p[{self._parameters - 1}]"
        if token.kind == "number":
            return token.text
        if token.kind == "text":
            return repr(text_of(token.said))
        if token.kind == "quoted":
            self._at -= 1
            return self._column(self.name())
        if token.kind == "word":
            return self._word(token)
        if token.text == "(":
            inner = self._disjunction()
            self.expect(")")
            return f"({inner})"
        if token.text == "-":
            return f"(-{self._atom()})"
        self._at -= 1
        raise self.not_modelled()

    def _word(self, token: _Token) -> str:
        constants = {"TRUE": "True", "FALSE": "False", "NULL": "None"}
        if token.text in constants:
            return constants[token.text]
        if token.text == "CASE":
            return self._case()
        if token.text == "__CLOCK__":
            return "s.microseconds()"
        if self.accept("("):
            return self._function(token)
        return self._column(token.said)

    def _column(self, name: str) -> str:
        if self.accept("."):
            table, name = name, self.name()
            if table.lower() == self.new_row:
                return f"\1{name}\1"
        return f"\0{name}\0"

    def _case(self) -> str:
        parts: list[str] = []
        while self.accept("WHEN"):
            condition = self._disjunction()
            self.expect("THEN")
            parts.append(f"{self._disjunction()} if {condition} else ")
        self.expect("ELSE")
        parts.append(self._disjunction())
        self.expect("END")
        return f"({''.join(parts)})"

    def _function(self, token: _Token) -> str:
        if token.text == "VALUES":
            column = self.name()
            self.expect(")")
            return f"\1{column}\1"
        if token.text == "LAST_INSERT_ID":
            if self.accept(")"):
                return "s.last_insert_id"
            return f"s.set_last_insert_id({', '.join(self._list())})"
        if token.text == "CAST":
            value = self._disjunction()
            if self.accept("AS", "UNSIGNED"):
                self.expect(")")
                return value
        if token.text == "GREATEST":
            return f"max({', '.join(self._list())})"
        self._at -= 2
        raise self.not_modelled()


def text_of(literal: str) -> str:
    """The text that a literal in quotes means; a backslash stands for what comes after it."""
    return re.sub(r"''|\\(.)", lambda found: found[1] or "'", literal[1:-1])


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SyntaxNotModelled(f"no model knows this, at {text[at : at + 20]!r}: {text}")
        at = match.end()
        kind = next(
            (k for k, v in match.groupdict().items() if v is not None and k != "name"), None
        )
        if kind is None:
            continue
        said = match[0]
        token = match["name"] or "" if kind == "parameter" else said
        found.append(_Token(kind, token.upper() if kind == "word" else token, said))
    found.append(_Token("end", "", ""))
    return found
