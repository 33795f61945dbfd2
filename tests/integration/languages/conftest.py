"""The example clients in other languages, built once, as programs that answer a line with tickets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName
from tests.support.draws import PATIENCE, mysql_like
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.servers.base import ServerMissing
from tests.support.servers.binaries import find_program
from tests.support.waiting import has_input

EXAMPLES = Path(__file__).parents[3] / "examples/languages"
LANGUAGES = ("node", "php", "go", "mysql")
#: The commands that the shell's client looks for.
CLIENTS = ("mariadb", "mysql")
#: Programs that answer ``photos 20`` with 20 tickets of as many draws at once.
CROWDS = {
    "node": """
const { createInterface } = require('node:readline');
const { tickets } = require(process.argv[1]);
(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [sequence, n] = line.split(' ');
    try {
      console.log((await Promise.all(Array.from({ length: n }, () => tickets(sequence, 1)))).join(' '));
    } catch (error) {
      console.log(`error: ${error.message}`);
    }
  }
  process.exit();
})();
""",
    "go": """
package main

import ("bufio"; "fmt"; "os"; "strings"; "sync")

func main() {
	tickets, _ := fromEnvironment()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var sequence string
		var n int
		fmt.Sscan(lines.Text(), &sequence, &n)
		drawn, failures := make([]int64, n), make([]error, n)
		var all sync.WaitGroup
		for k := 0; k < n; k++ {
			all.Add(1)
			go func(k int) {
				defer all.Done()
				one, err := tickets.Draw(sequence, 1)
				if failures[k] = err; err == nil {
					drawn[k] = one[0]
				}
			}(k)
		}
		all.Wait()
		answer := strings.Trim(fmt.Sprint(drawn), "[]")
		for _, err := range failures {
			if err != nil {
				answer = fmt.Sprint("error: ", err)
			}
		}
		fmt.Println(answer)
	}
}
""",
}


class Refused(Exception):
    """A client has drawn nothing, and said why."""


class Client:
    """A process of an example client.

    Args:
        command: of the program.
        environment: its variables.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._read = b""

    def draw(self, sequence: str = "photos", n: int = 1) -> list[int]:
        """Have it draw, and return what it says.

        Raises:
            Refused: it says an error.
        """
        self.ask(sequence, n)
        return self.answer()

    def ask(self, sequence: str = "photos", n: int = 1) -> None:
        """Send a line, whose `answer` is awaited later."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sequence} {n}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> list[int]:
        """Wait for the answer to a line."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            assert left > 0, "the client hangs"
            if has_input(self._process.stdout, left):
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                assert data, f"the client has ended: {self._process.wait(5)}"
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        if line.startswith(b"error: "):
            raise Refused(line.decode())
        return [int(word) for word in line.split()]

    def freeze(self) -> None:
        """Stop it, with the processes that it has started, wherever it is."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


#: Start a client of a language, with these servers; more variables of its environment by name.
StartClient = Callable[..., Client]


@pytest.fixture(scope="session")
def programs() -> dict[str, list[str]]:
    """The command of each language that was asked for."""
    return {}


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all workers of a run have what one of them has built."""
    folder = tmp_path_factory.getbasetemp()
    return folder if os.environ.get("PYTEST_XDIST_WORKER") is None else folder.parent


@pytest.fixture
def start_client(
    programs: dict[str, list[str]],
    pytestconfig: pytest.Config,
    builds: Path,
    tmp_path: Path,
) -> Iterator[StartClient]:
    """Start clients, which end with the test. A language that this machine lacks is as a missing server is."""
    clients: list[Client] = []

    def start(language: str, urls: Sequence[URL], **environment: str) -> Client:
        if language not in programs:
            try:
                programs[language] = command_of(language, builds / language)
            except ServerMissing as missing:
                if pytestconfig.getoption("--require-all-servers"):
                    pytest.fail(str(missing), pytrace=False)
                pytest.skip(str(missing))
        addresses = [address(url, language, tmp_path) for url in urls]
        environment.setdefault("TICKET_SERVERS", " ".join(addresses))
        clients.append(Client(programs[language], environment))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()


def command_of(language: str, folder: Path) -> list[str]:
    """Build what is to be built; the command of the program.

    Raises:
        ServerMissing: the language is not installed.
    """
    source = EXAMPLES / language
    if language == "node":
        node = find_program(["node"], "install Node.js (Debian: apt-get install npm)")
        npm = find_program(["npm"], "install npm (Debian: apt-get install npm)")
        build([str(npm), "install", "--no-audit", "--no-fund", "--no-package-lock"], source, folder)
        return [str(node), str(folder / "tickets.js")]
    if language == "go":
        go = find_program(["go"], "install Go (Debian: apt-get install golang-go)")
        build([str(go), "build", "-o", "tickets", "tickets.go"], source, folder)
        return [str(folder / "tickets")]
    if language == "php":
        php = find_program(["php"], "install PHP (Debian: apt-get install php-cli php-mysql)")
        return [str(php), str(source / "tickets.php")]
    find_program(CLIENTS, "install a client (Debian: apt-get install mariadb-client)")
    bash = find_program(["bash"], "install bash")
    return [str(bash), str(source / "tickets.sh")]


def crowd_of(language: str, folder: Path) -> list[str]:
    """Build a program of `CROWDS`; its command.

    Raises:
        ServerMissing: the language is not installed.
    """
    command = command_of(language, folder / language)
    if language == "node":
        return [command[0], "-e", CROWDS["node"], command[1]]
    go = find_program(["go"], "install Go (Debian: apt-get install golang-go)")
    source, built = folder / "go-source", folder / "go-crowd"
    source.mkdir(exist_ok=True)
    client = (EXAMPLES / "go/tickets.go").read_text().replace("func main()", "func answer()")
    (source / "tickets.go").write_text(client)
    (source / "crowd.go").write_text(CROWDS["go"])
    build([str(go), "build", "-o", "tickets", "tickets.go", "crowd.go"], source, built)
    return [str(built / "tickets")]


def build(command: list[str], source: Path, folder: Path) -> None:
    """Run a command in a copy of the source, unless another worker has."""
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if folder.exists():
            return
        copy = folder.with_suffix(".new")
        shutil.copytree(source, copy, dirs_exist_ok=True)
        # Debian's packages of Go are in a GOPATH
        environment = os.environ | {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        copy.rename(folder)


def address(url: URL, language: str, folder: Path) -> str:
    """A server as the clients are told of it: a URL, or for ``mysql`` the path of a file of options."""
    if language != "mysql":
        return url.set(drivername="mysql").render_as_string(hide_password=False)
    file = folder / f"{url.database}-{url.port}.cnf"
    file.write_text(
        f"[client]\nhost={url.host}\nport={url.port}\nuser={url.username}\n"
        f"password={url.password or ''}\n[mysql]\ndatabase={url.database}\n"
    )
    file.chmod(0o600)
    return str(file)


class Site:
    """Two servers of one kind, and an empty database on each in which applications may draw and no more.

    Attributes:
        layout: of the tables.
        servers: the servers.
        urls: of the applications.
        owners: of an administrator, for the same databases.
    """

    def __init__(self, servers: ServerFixtures, kind: str, layout: LayoutName) -> None:
        self.layout: LayoutName = layout
        self.servers: list[MySQLLike] = [mysql_like(servers, kind, n) for n in range(2)]
        self.urls = [servers.fresh_database(server, "draw") for server in self.servers]
        self.owners = [
            server.url(url.database, user=server.root)
            for server, url in zip(self.servers, self.urls, strict=True)
        ]

    def create(self, name: str = "photos", start: int = 1, bits: int = 64) -> None:
        """Create a ticket table on both."""
        with TicketPool(self.owners) as pool:
            pool.create_table(name, layout=self.layout, start=start, bits=bits)


@pytest.fixture(params=["mariadb", "mysql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["replace", "counter"])
def site(request: pytest.FixtureRequest, kind: str, servers: ServerFixtures) -> Site:
    return Site(servers, kind, request.param)
