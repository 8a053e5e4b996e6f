"""Clusters: their description, resolvers, and this process as a member of one."""
