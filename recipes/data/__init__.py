"""Data that recipes have with them: programs that write English verbs and German-English sentences."""
