"""Between Spark and the keepers: placement, rows there and back, the fleet as the driver sees it."""
