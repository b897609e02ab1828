"""Built-in operators, on the user's own API or on whole Arrow columns."""
