"""What bytes mean: pure encoders and decoders. `README.md` here is the specification."""
