"""State that expires: when, how its handles hide it, and how it is cleaned up."""
