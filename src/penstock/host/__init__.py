"""The program in a child process: takes tasks, calls their handlers, and sends what they do as frames."""
