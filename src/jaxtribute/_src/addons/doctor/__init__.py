"""`jaxtribute doctor`: what is installed, what is found, what is wrong with it, and how to put it right."""
