// Tickets for Node.js. It answers each line of its input, such as "photos 20", with so many tickets of that sequence.
//   TICKET_SERVERS="mysql://tickets:secret@ticket1/tickets mysql://tickets:secret@ticket2/tickets" node tickets.js
'use strict';
const { createInterface } = require('node:readline');
const mysql = require('mysql2/promise');

const SERVERS = process.env.TICKET_SERVERS.trim().split(/\s+/); // in the pool's order, which gives each server its numbers
const STRIDE = BigInt(process.env.TICKET_STRIDE || SERVERS.length); // the pool's
const MOST = 1_000_000; // tickets at a time: a larger number by mistake would use up the sequence
const TIMEOUT = 3000; // milliseconds; longer than the waits for locks below
const MOST_CONNECTIONS = 16; // to one server; further draws wait for one that ends
const SESSION = `SET SESSION autocommit = 1, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1,
  sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')`;
// The stub column of a table whose stride was changed is named after it: a client of another stride finds none.
const TABLE = `SELECT t.TABLE_COMMENT AS comment, c.COLUMN_NAME AS stub
  FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c
  WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = :sequence AND c.TABLE_SCHEMA = DATABASE()
  AND c.TABLE_NAME = :sequence AND c.COLUMN_NAME IN ('stub', 'stub_${STRIDE}')`;

class TicketServer {
  constructor(url, number) {
    this.options = { uri: url, connectTimeout: 1000, multipleStatements: true, namedPlaceholders: true };
    Object.assign(this.options, { supportBigNumbers: true, bigNumberStrings: true }); // no number above 2**53 is rounded
    this.offset = BigInt(number);
    this.idle = []; // connections; one that draws is not among them, so no two draws share one
    this.drawing = 0;
    this.waiting = []; // for a draw to end
  }

  async draw(sequence, n) {
    await this.begin();
    let connection;
    try {
      connection = this.idle.pop() || (await this.connect());
      const tickets = await this.drawOn(connection, sequence, n);
      this.idle.push(connection);
      return tickets;
    } catch (error) {
      connection?.destroy(); // it may hold the table's lock, or its next answer may be a late one
      for (const other of this.idle.splice(0)) other.destroy(); // a server that restarts ends them all
      throw error;
    } finally {
      this.end();
    }
  }

  async begin() {
    if (this.drawing < MOST_CONNECTIONS) {
      this.drawing++;
      return;
    }
    await new Promise((resolve, reject) => {
      const giveUp = () => {
        this.waiting.splice(this.waiting.indexOf(next), 1);
        reject(new Error(`${MOST_CONNECTIONS} draws on server ${this.offset} take too long`));
      };
      const timer = setTimeout(giveUp, TIMEOUT);
      const next = () => {
        clearTimeout(timer);
        resolve();
      };
      this.waiting.push(next);
    });
  }

  end() {
    const next = this.waiting.shift();
    if (next) next(); // in place of the draw that ends
    else this.drawing--;
  }

  async connect() {
    const connection = await mysql.createConnection(this.options);
    connection.on('error', () => {}); // one that ends while it is idle fails the next draw
    connection.tables = new Map();
    try {
      await this.send(connection, SESSION);
    } catch (error) {
      connection.destroy();
      throw error;
    }
    return connection;
  }

  async send(connection, sql, values) {
    const [result] = await connection.query({ sql, values, timeout: TIMEOUT });
    return result;
  }

  async drawOn(connection, sequence, n) {
    const { layout, stub } = await this.table(connection, sequence);
    const span = STRIDE * BigInt(n - 1);
    let first, last;
    if (layout === 'counter') {
      const update = `UPDATE \`${sequence}\` SET id = LAST_INSERT_ID(id + ${span + STRIDE}) WHERE ${stub} = 'c'`;
      last = BigInt((await this.send(connection, update)).insertId);
      first = last - span;
    } else if (n === 1) {
      first = last = BigInt((await this.send(connection, this.replace(sequence, `(${stub}) VALUES ('a')`))).insertId);
    } else {
      const statements = [
        `LOCK TABLES \`${sequence}\` WRITE`,
        this.replace(sequence, `(${stub}) VALUES ('a')`),
        this.replace(sequence, `(id, ${stub}) VALUES (LAST_INSERT_ID() + ${span}, 'a')`),
        'UNLOCK TABLES',
      ];
      const results = await this.send(connection, statements.join('; ')); // one packet: nobody waits for this process
      first = BigInt(results[1].insertId);
      last = BigInt(results[2].insertId);
    }
    if (first <= 0n || last !== first + span || (first - this.offset) % STRIDE !== 0n) {
      throw new Error(`${first} to ${last} are no tickets of server ${this.offset}`);
    }
    return Array.from({ length: n }, (_, k) => first + STRIDE * BigInt(k));
  }

  // Stride and offset are part of the statement: MariaDB reads /*M! */, MySQL reads /*+ */.
  replace(sequence, values) {
    const [stride, offset] = [`auto_increment_increment=${STRIDE}`, `auto_increment_offset=${this.offset}`];
    return `/*M! SET STATEMENT ${stride}, ${offset} FOR */ REPLACE /*+ SET_VAR(${stride}) SET_VAR(${offset}) */
      INTO \`${sequence}\` ${values}`;
  }

  // The layout and the stub column of a table, if its comment says that it is numbered like this.
  async table(connection, sequence) {
    if (!connection.tables.has(sequence)) {
      const [row] = await this.send(connection, TABLE, { sequence });
      const [, json] = /^sqla_tickets (\{.*)$/.exec(row?.comment) || [];
      const { layout, stride, offset } = JSON.parse(json || '{}');
      if (!layout || BigInt(stride) !== STRIDE || BigInt(offset) !== this.offset) {
        throw new Error(`${sequence} on server ${this.offset} is no table of stride ${STRIDE}: ${row?.comment}`);
      }
      connection.tables.set(sequence, { layout, stub: row.stub });
    }
    return connection.tables.get(sequence);
  }
}

const servers = SERVERS.map((url, index) => new TicketServer(url, index + 1));
let turn = Math.floor(Math.random() * servers.length);

// Draws from the next server; after an error from the one after it, each of them twice at most.
async function tickets(sequence, n) {
  if (!/^\w+$/.test(sequence) || !Number.isInteger(n) || n < 1 || n > MOST) {
    throw new Error(`expected a sequence, and 1 to ${MOST} tickets`);
  }
  const errors = [];
  const first = turn++; // draws at the same time have a first server of their own
  for (let attempt = 0; attempt < 2 * servers.length; attempt++) {
    try {
      return await servers[(first + attempt) % servers.length].draw(sequence, n);
    } catch (error) {
      errors.push(error.message);
    }
  }
  throw new Error(`no ticket server: ${errors.join('; ')}`);
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const [sequence, n] = line.split(' ');
    try {
      console.log((await tickets(sequence, Number(n))).join(' '));
    } catch (error) {
      console.log(`error: ${error.message.replace(/\s+/g, ' ')}`);
    }
  }
  process.exit();
}

if (require.main === module) main();
module.exports = { tickets };
