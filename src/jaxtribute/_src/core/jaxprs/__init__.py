"""The one room that knows JAX's insides: programs (jaxprs), their operations, and operations of the library's own."""
