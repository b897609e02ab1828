"""The state of one operator partition: tables over a backend, and the handles that functions see."""
