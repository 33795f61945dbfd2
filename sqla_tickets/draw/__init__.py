"""Drawing tickets. `TicketPool.reserve` calls `buffer`; a draw goes down this list, and errors come back up.

- `buffer`: tickets that were drawn and are not used yet, and their refill. `blocks` has the functions for ranges of them.
- `failover`: which servers a draw is sent to, and in which order; `redirects` follows a sequence that has moved.
  Many callers at once share their draws in `shared`.
- `server`: a `TicketServer` and its draws in flight. Its bases are `table_access`, the work on its tables, and
  `access`, its connections and health. Its time-outs are in `sqla_tickets.connect.timeouts`.
- `table_state`: what this process knows of a table, and the fence that every ticket passes.

Off that path, `slow_path` has the rare parts of an attempt: inspecting its table first, and handling an error. In the
background, `hedging` polls the draws in flight, `health_check` and its `probes` ask servers whose `circuit_breaker`
is open. `timing` has the times and sizes of all these.
"""
