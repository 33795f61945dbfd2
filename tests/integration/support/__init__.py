"""What the tests are made with: servers, the TCP proxy, the benchmarks."""
