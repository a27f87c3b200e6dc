"""The command line: a file a command. Heavy imports wait until their command runs."""
