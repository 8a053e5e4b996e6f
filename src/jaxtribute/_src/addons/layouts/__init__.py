"""Layouts of variables that are chosen from a traced program: `layout="auto"`."""
