"""What goes out of dflashq goes into the trainers themselves: `make acceptance`."""
