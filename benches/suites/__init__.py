"""One module for each benchmark. Empty, so that a load that runs in a small memory group stays
small: it imports its own module and none of the others."""
