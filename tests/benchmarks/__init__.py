"""The numbers that dflashq has to reach, measured on this machine: `make bench`."""
