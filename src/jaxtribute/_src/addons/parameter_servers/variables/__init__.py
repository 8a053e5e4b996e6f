"""Variables on servers, and steps over them."""
