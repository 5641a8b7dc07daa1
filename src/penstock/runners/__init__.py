"""What runs a handler: on the loop, in a thread; later in a child process or in Node."""
