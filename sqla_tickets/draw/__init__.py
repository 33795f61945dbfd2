"""Drawing tickets. `TicketPool.reserve` comes here by `buffer`; a draw goes down this list, and errors come back up.

- `buffer`: tickets that were drawn and are not used yet, and their refill.
- `failover`: which servers a draw is sent to, one after the other; `redirects` follows a sequence that has moved.
- `server`: a `TicketServer` and its draws in flight. Its bases are `table_access`, what it learns of its tables and
  does to them, and `access`, its connections and health. Its time-outs are in `sqla_tickets.connect.timeouts`.
- `table_state`: what this process knows of a table, and the fence that every ticket passes.

Off that path, `slow_path` has what an attempt seldom needs: to inspect its table first, and what follows an error.
In the background, `hedging` polls the draws in flight, `health_check` and its `probes` ask servers whose
`circuit_breaker` is open. `timing` has the times and sizes of all these.
"""
