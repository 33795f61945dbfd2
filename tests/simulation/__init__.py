"""The package in a deterministic simulation: one seed decides every latency, fault and interleaving.

Processes are frozen, killed and forked. What does not fit stays with the tests on real servers:

* A fork copies what pools and modules lead to, not the stacks of threads: a thread that forks goes on in no child. `forks`
  says how. Real forks, and those of C code, are in ``tests/integration/draw/test_prefork.py``.
* Event loops, drivers written in C, TLS, real sockets and files.
* Images of processes are taken only while all their threads are outside of the package, as no stack can be copied: of a
  process in the middle of a draw there is none. None is resumed twice, and none has buffered tickets: two copies of one
  memory cannot know of each other, and nothing is promised of what they had buffered. Images of servers are resumed with
  their old state and their old uptime.
"""
