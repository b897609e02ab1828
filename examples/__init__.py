"""Example programs. They are run from a checkout and are no part of the installed package."""
