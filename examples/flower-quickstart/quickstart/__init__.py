"""Ten clients learn to read digits and are paid for what their data taught them."""
