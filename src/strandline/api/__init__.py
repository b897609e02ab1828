"""What users write: state declarations and process functions."""
