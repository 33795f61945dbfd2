// Tickets for Go. It answers each line of its input, such as "photos 20", with so many tickets of that sequence.
//
//	TICKET_SERVERS="mysql://tickets:secret@ticket1/tickets mysql://tickets:secret@ticket2/tickets" go run tickets.go
package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// The stub column of a table whose stride was changed is named after it: a client of another stride finds none.
const tableQuery = `SELECT t.TABLE_COMMENT, c.COLUMN_NAME
	FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c
	WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = ? AND c.TABLE_SCHEMA = DATABASE()
	AND c.TABLE_NAME = ? AND c.COLUMN_NAME IN ('stub', ?)`

// mostTickets at a time: a number that wraps at 64 bits would set a counter back, or use all of it up.
const mostTickets = 1_000_000

var isName = regexp.MustCompile(`^\w+$`)

// TicketServer is one server of the pool.
type TicketServer struct {
	db             *sql.DB
	offset, stride int64
	idle           chan *connection // one that draws is not among them, so no two draws share one
}

type connection struct {
	*sql.Conn
	tables map[string]table
}

type table struct {
	layout, stub string
}

func newTicketServer(address string, offset, stride int64) (*TicketServer, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	config := mysql.NewConfig()
	config.User = parsed.User.Username()
	config.Passwd, _ = parsed.User.Password()
	config.Net, config.Addr, config.DBName = "tcp", parsed.Host, strings.TrimPrefix(parsed.Path, "/")
	config.Timeout, config.WriteTimeout = time.Second, time.Second
	config.ReadTimeout = 3 * time.Second // longer than the waits for locks
	config.Params = map[string]string{   // of each new session
		"autocommit":               "1",
		"lock_wait_timeout":        "1",
		"innodb_lock_wait_timeout": "1",
		"sql_mode":                 "CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')",
	}
	db, err := sql.Open("mysql", config.FormatDSN())
	return &TicketServer{db, offset, stride, make(chan *connection, 16)}, err
}

func (s *TicketServer) draw(sequence string, n int64) ([]int64, error) {
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	first, last, err := s.drawOn(c, sequence, n)
	if err == nil && (first <= 0 || last < first || last != first+s.stride*(n-1) || (first-s.offset)%s.stride != 0) {
		err = fmt.Errorf("%d to %d are no tickets of server %d", first, last, s.offset)
	}
	if err != nil { // the connection may hold the table's lock, or its next answer may be a late one
		c.discard()
		s.discardIdle()
		return nil, err
	}
	select {
	case s.idle <- c:
	default:
		c.discard()
	}
	tickets := make([]int64, n)
	for k := range tickets {
		tickets[k] = first + s.stride*int64(k)
	}
	return tickets, nil
}

func (s *TicketServer) connect() (*connection, error) {
	select {
	case c := <-s.idle:
		return c, nil
	default:
		conn, err := s.db.Conn(context.Background())
		return &connection{conn, map[string]table{}}, err
	}
}

// discardIdle ends the idle sessions. A server that restarts has ended them all.
func (s *TicketServer) discardIdle() {
	for {
		select {
		case c := <-s.idle:
			c.discard()
		default:
			return
		}
	}
}

// discard ends the session; a mere Close would give it to the next draw.
func (c *connection) discard() {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.Close()
}

// exec sends a statement on this connection and no other, and returns the number in its OK packet.
func (c *connection) exec(statement string) (int64, error) {
	result, err := c.ExecContext(context.Background(), statement)
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

func (s *TicketServer) drawOn(c *connection, sequence string, n int64) (first, last int64, err error) {
	t, err := s.table(c, sequence)
	if err != nil {
		return 0, 0, err
	}
	span := s.stride * (n - 1)
	if t.layout == "counter" {
		last, err = c.exec(fmt.Sprintf("UPDATE `%s` SET id = LAST_INSERT_ID(id + %d) WHERE %s = 'c'",
			sequence, span+s.stride, t.stub))
		return last - span, last, err
	}
	if n == 1 {
		first, err = c.exec(s.replace(sequence, fmt.Sprintf("(%s) VALUES ('a')", t.stub)))
		return first, first, err
	}
	if _, err = c.exec(fmt.Sprintf("LOCK TABLES `%s` WRITE", sequence)); err != nil {
		return 0, 0, err
	}
	if first, err = c.exec(s.replace(sequence, fmt.Sprintf("(%s) VALUES ('a')", t.stub))); err != nil {
		return 0, 0, err
	}
	last, err = c.exec(s.replace(sequence, fmt.Sprintf("(id, %s) VALUES (LAST_INSERT_ID() + %d, 'a')", t.stub, span)))
	if err != nil {
		return 0, 0, err
	}
	_, err = c.exec("UNLOCK TABLES")
	return first, last, err
}

// Stride and offset are part of the statement: MariaDB reads /*M! */, MySQL reads /*+ */.
func (s *TicketServer) replace(sequence, values string) string {
	stride := fmt.Sprintf("auto_increment_increment=%d", s.stride)
	offset := fmt.Sprintf("auto_increment_offset=%d", s.offset)
	return fmt.Sprintf("/*M! SET STATEMENT %[1]s, %[2]s FOR */ REPLACE /*+ SET_VAR(%[1]s) SET_VAR(%[2]s) */"+
		" INTO `%[3]s` %[4]s", stride, offset, sequence, values)
}

// table returns the layout and the stub column of a table, if its comment says that it is numbered like this.
func (s *TicketServer) table(c *connection, sequence string) (table, error) {
	if known, ok := c.tables[sequence]; ok {
		return known, nil
	}
	var comment, stub string
	row := c.QueryRowContext(context.Background(), tableQuery, sequence, sequence, fmt.Sprintf("stub_%d", s.stride))
	if err := row.Scan(&comment, &stub); err != nil && err != sql.ErrNoRows {
		return table{}, err
	}
	var found struct {
		Layout         string
		Stride, Offset int64
	}
	err := errors.New("no metadata")
	if strings.HasPrefix(comment, "sqla_tickets {") {
		err = json.Unmarshal([]byte(strings.TrimPrefix(comment, "sqla_tickets ")), &found)
	}
	if err != nil || found.Stride != s.stride || found.Offset != s.offset {
		return table{}, fmt.Errorf("%s on server %d is no table of stride %d: %s", sequence, s.offset, s.stride, comment)
	}
	c.tables[sequence] = table{found.Layout, stub}
	return c.tables[sequence], nil
}

// Tickets draws from the servers of a pool. Goroutines may share it.
type Tickets struct {
	servers []*TicketServer
	turn    uint32
}

// NewTickets takes the servers in the pool's order, which gives each its numbers, and the pool's stride.
func NewTickets(addresses []string, stride int64) (*Tickets, error) {
	t := &Tickets{turn: rand.New(rand.NewSource(time.Now().UnixNano())).Uint32()}
	for index, address := range addresses {
		server, err := newTicketServer(address, int64(index+1), stride)
		if err != nil {
			return nil, err
		}
		t.servers = append(t.servers, server)
	}
	return t, nil
}

// Draw asks the next server; after an error the one after it, each of them twice at most.
func (t *Tickets) Draw(sequence string, n int64) ([]int64, error) {
	if !isName.MatchString(sequence) || n < 1 || n > mostTickets {
		return nil, fmt.Errorf("expected a sequence, and 1 to %d tickets", mostTickets)
	}
	var failures []string
	first := int(atomic.AddUint32(&t.turn, 1) % uint32(len(t.servers))) // of this draw; others have their own
	for attempt := 0; attempt < 2*len(t.servers); attempt++ {
		tickets, err := t.servers[(first+attempt)%len(t.servers)].draw(sequence, n)
		if err == nil {
			return tickets, nil
		}
		failures = append(failures, err.Error())
	}
	return nil, fmt.Errorf("no ticket server: %s", strings.Join(failures, "; "))
}

func fromEnvironment() (*Tickets, error) {
	addresses := strings.Fields(os.Getenv("TICKET_SERVERS"))
	stride := int64(len(addresses))
	if text := os.Getenv("TICKET_STRIDE"); text != "" {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		stride = number
	}
	return NewTickets(addresses, stride)
}

func main() {
	tickets, err := fromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var sequence string
		var n int64
		_, err := fmt.Sscan(lines.Text(), &sequence, &n)
		var drawn []int64
		if err == nil {
			drawn, err = tickets.Draw(sequence, n)
		}
		if err != nil {
			fmt.Println("error:", strings.Join(strings.Fields(err.Error()), " "))
			continue
		}
		fmt.Println(strings.Trim(fmt.Sprint(drawn), "[]"))
	}
}
