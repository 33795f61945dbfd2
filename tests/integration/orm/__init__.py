"""Every way into a table: the ids it gets, the draws and the INSERT statements that it costs."""
