# Ends a command whose output went to FILE, with that output.
file(READ "${FILE}" output)
message(FATAL_ERROR "${output}")
