"""Exit codes by which a process of a job tells the launcher why it ended."""

RESUME = 75
"""It has saved and asks to be started again (EX_TEMPFAIL)."""
ELSEWHERE = 70
"""Its cluster failed elsewhere: it is not the cause (EX_SOFTWARE)."""
