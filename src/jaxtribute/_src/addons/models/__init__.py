"""Other libraries under strategies; each is imported only when it is used."""
