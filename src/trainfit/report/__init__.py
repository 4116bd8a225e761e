"""Results as text. Nothing is computed here that the records do not say."""
