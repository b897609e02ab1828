"""The package's version, that of the distribution; manifests record it as their writer's."""

VERSION = "0.1.0"
