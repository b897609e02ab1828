"""The package's version: that of the distribution, and what manifests say they were written by."""

VERSION = "0.1.0"
