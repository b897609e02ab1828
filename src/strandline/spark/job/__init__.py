"""Jobs: start, supervision, epochs, requests, stop."""
