"""Server of the page on loopback, and the files that a browser shows (`strandline ui`)."""
