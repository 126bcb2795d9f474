"""The machinery that all recipes share: settings, runs, training, records, cards."""
