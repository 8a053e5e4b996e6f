"""The run, live: records that workers write, what is read from them, a terminal view and a web page."""
