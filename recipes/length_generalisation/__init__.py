"""Length generalisation: attention trained on short sequences, tested on sequences up to 64 times as long."""
