"""Drawing tickets: unique whatever happens, and a clear word when it cannot go on."""
