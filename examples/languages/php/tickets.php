<?php
// Tickets for PHP. It answers each line of its input, such as "photos 20", with so many tickets of that sequence.
//   TICKET_SERVERS="mysql://tickets:secret@ticket1/tickets mysql://tickets:secret@ticket2/tickets" php tickets.php
declare(strict_types=1);

mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT); // an error is an exception

final class TicketServer
{
    private const SESSION = "SET SESSION autocommit = 1, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1,
        sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')";
    // The stub column of a table whose stride was changed is named after it: a client of another stride finds none.
    private const TABLE = "SELECT t.TABLE_COMMENT, c.COLUMN_NAME
        FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c
        WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = ? AND c.TABLE_SCHEMA = DATABASE()
        AND c.TABLE_NAME = ? AND c.COLUMN_NAME IN ('stub', ?)";
    private const TIMEOUT = 3; // seconds; longer than the waits for locks above

    private ?mysqli $connection = null;
    private array $tables = [];
    private int $process = 0;

    public function __construct(private string $url, private int $offset, private int $stride)
    {
    }

    /** @return int[] */
    public function draw(string $sequence, int $n): array
    {
        if ($this->process !== getmypid()) { // after a fork: the connection is the parent's
            $this->connection = null;
        }
        try {
            $this->connection ??= $this->connect();
            return $this->drawOn($this->connection, $sequence, $n);
        } catch (Throwable $error) {
            $this->connection?->close(); // it may hold the table's lock, or its next answer may be a late one
            $this->connection = null;
            throw $error;
        }
    }

    private function connect(): mysqli
    {
        $url = array_map('rawurldecode', array_map('strval', parse_url($this->url)));
        $connection = mysqli_init();
        $connection->options(MYSQLI_OPT_CONNECT_TIMEOUT, 1);
        $connection->options(MYSQLI_OPT_READ_TIMEOUT, self::TIMEOUT);
        $connection->real_connect(
            $url['host'], $url['user'], $url['pass'] ?? '', substr($url['path'], 1), (int) ($url['port'] ?? 3306)
        );
        $connection->query(self::SESSION);
        [$this->tables, $this->process] = [[], getmypid()];
        return $connection;
    }

    private function drawOn(mysqli $connection, string $sequence, int $n): array
    {
        [$layout, $stub] = $this->tables[$sequence] ??= $this->table($connection, $sequence);
        $span = $this->stride * ($n - 1);
        if ($layout === 'counter') {
            $size = $span + $this->stride;
            $connection->query("UPDATE `$sequence` SET id = LAST_INSERT_ID(id + $size) WHERE $stub = 'c'");
            $last = $connection->insert_id;
            $first = $last - $span;
        } elseif ($n === 1) {
            $connection->query($this->replace($sequence, "($stub) VALUES ('a')"));
            $first = $last = $connection->insert_id;
        } else {
            $connection->multi_query(implode('; ', [ // one packet: nobody waits for this process
                "LOCK TABLES `$sequence` WRITE",
                $this->replace($sequence, "($stub) VALUES ('a')"),
                $this->replace($sequence, "(id, $stub) VALUES (LAST_INSERT_ID() + $span, 'a')"),
                'UNLOCK TABLES',
            ]));
            $connection->next_result();
            $first = $connection->insert_id;
            $connection->next_result();
            $last = $connection->insert_id;
            $connection->next_result();
        }
        if (!is_int($first) || $first <= 0 || $last !== $first + $span || ($first - $this->offset) % $this->stride) {
            throw new RuntimeException("$first to $last are no tickets of server $this->offset");
        }
        return range($first, $last, $this->stride);
    }

    // Stride and offset are part of the statement: MariaDB reads /*M! */, MySQL reads /*+ */.
    private function replace(string $sequence, string $values): string
    {
        $stride = "auto_increment_increment=$this->stride";
        $offset = "auto_increment_offset=$this->offset";
        return "/*M! SET STATEMENT $stride, $offset FOR */ REPLACE /*+ SET_VAR($stride) SET_VAR($offset) */
            INTO `$sequence` $values";
    }

    // The layout and the stub column of a table, if its comment says that it is numbered like this.
    private function table(mysqli $connection, string $sequence): array
    {
        $rows = $connection->prepare(self::TABLE);
        $rows->execute([$sequence, $sequence, "stub_$this->stride"]);
        [$comment, $stub] = $rows->get_result()->fetch_row() ?: ['', ''];
        $table = str_starts_with($comment, 'sqla_tickets {') ? json_decode(substr($comment, 13)) : null;
        if ([$table?->stride, $table?->offset] !== [$this->stride, $this->offset]) {
            throw new RuntimeException("$sequence on server $this->offset is no table of stride $this->stride: $comment");
        }
        return [$table->layout, $stub];
    }
}

final class Tickets
{
    // At a time: a number that leaves 64 bits would set a counter back, or use all of it up.
    private const MOST = 1_000_000;

    /** @var TicketServer[] */
    private array $servers = [];
    private int $turn;

    /**
     * @param string[] $urls in the pool's order, which gives each server its numbers
     * @param int $stride the pool's
     */
    public function __construct(array $urls, int $stride)
    {
        foreach ($urls as $index => $url) {
            $this->servers[] = new TicketServer($url, $index + 1, $stride);
        }
        $this->turn = random_int(0, count($urls) - 1);
    }

    /**
     * Draws from the next server; after an error from the one after it, each of them twice at most.
     *
     * @return int[]
     */
    public function draw(string $sequence, int $n = 1): array
    {
        if (!preg_match('/^\w+$/D', $sequence) || $n < 1 || $n > self::MOST) {
            throw new InvalidArgumentException('expected a sequence, and 1 to ' . self::MOST . ' tickets');
        }
        $errors = [];
        for ($attempt = 0; $attempt < 2 * count($this->servers); $attempt++) {
            try {
                return $this->servers[$this->turn++ % count($this->servers)]->draw($sequence, $n);
            } catch (Exception $error) {
                $errors[] = $error->getMessage();
            }
        }
        throw new RuntimeException('no ticket server: ' . implode('; ', $errors));
    }
}

if (get_included_files()[0] === __FILE__) {
    $urls = preg_split('/\s+/', trim(getenv('TICKET_SERVERS')));
    $tickets = new Tickets($urls, (int) (getenv('TICKET_STRIDE') ?: count($urls)));
    while (($line = fgets(STDIN)) !== false) {
        [$sequence, $n] = explode(' ', trim($line));
        try {
            echo implode(' ', $tickets->draw($sequence, (int) $n)), "\n";
        } catch (Exception $error) {
            echo 'error: ', preg_replace('/\s+/', ' ', $error->getMessage()), "\n";
        }
    }
}
