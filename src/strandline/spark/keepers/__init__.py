"""The connection of Spark and the keepers: the shuffle, the Python workers, the driver's view of all keepers."""
